"""Patterns such as ^[A-Z]\\w{1,99}$, whose repetitions have large limits.

The length of a text bounds the number of repetitions, so that one counter takes the place of a state for each number.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.patterns.anchors import BEGIN, END, Anchor, LookAhead
from shared.patterns.parts import Alternatives, Characters, FormPart, JoinedParts, MergedCharacters, RepeatedPart

COUNTED = 2_000  # states of a repetition, above which a counter takes their place


class Counted(NamedTuple):
    """A part without the limits of its large repetitions. Its texts of at most `longest` characters are texts of the
    original, and if `is_exact` there are no others."""

    part: FormPart
    longest: int
    is_exact: bool


def without_limits(whole: FormPart, *, is_searched: bool = False) -> Counted | None:
    """The part without limits; None if it has no large ones. `is_searched`: text may be around it, if it has no ^ and
    $."""
    part, longest = _relaxed(whole)
    if longest is None:
        return None
    parts = list(_flat(whole))
    is_whole = not is_searched or (_is_anchor(parts[:1], BEGIN) and _is_anchor(parts[-1:], END))
    return Counted(part, longest, is_whole and _lengths(whole)[1] == longest)


def without_repeated_ends(part: FormPart) -> FormPart:
    """A part that is searched in a text: of a repetition at its begin or end, the fewest are enough."""
    parts = list(_flat(part))
    for at in {0, len(parts) - 1} if parts else ():
        if isinstance(each := parts[at], RepeatedPart) and not isinstance(each.part, LookAhead):
            parts[at] = RepeatedPart(each.part, each.least, each.least)
    return JoinedParts(tuple(parts))


def _relaxed(part: FormPart) -> tuple[FormPart, int | None]:
    """The part without large limits, and the length up to which its texts keep them; None: of any length."""
    match part:
        case RepeatedPart(inner, least, most):
            own, longest = _relaxed(inner)
            shortest = _lengths(inner)[0]
            if most and least < most and part.size > COUNTED and shortest and longest is None:
                return RepeatedPart(own, least), most * shortest
            return RepeatedPart(own, least, most), longest
        case Alternatives(parts):
            ways = [_relaxed(each) for each in parts]
            return Alternatives(tuple(own for own, _ in ways)), _lowest(longest for _, longest in ways)
        case JoinedParts(parts):
            ways = [_relaxed(each) for each in parts]
            least = _lengths(part)[0]
            longest = _lowest(
                most and most + least - _lengths(each)[0] for each, (_, most) in zip(parts, ways, strict=True)
            )
            return JoinedParts(tuple(own for own, _ in ways)), longest
    return part, None


def _lowest(lengths: Iterator[int | None]) -> int | None:
    return min((each for each in lengths if each is not None), default=None)


def _is_anchor(parts: Sequence[FormPart], kind: object) -> bool:
    return any(isinstance(part, Anchor) and part.condition == kind for part in parts)


def _flat(part: FormPart) -> Iterator[FormPart]:
    if isinstance(part, JoinedParts):
        for each in part.parts:
            yield from _flat(each)
    else:
        yield part


def _lengths(part: FormPart) -> tuple[int, int | None]:
    """The fewest and the most characters of its texts; None: no limit."""
    match part:
        case Characters() | MergedCharacters():
            return 1, 1
        case RepeatedPart(inner, least, most):
            shortest, longest = _lengths(inner)
            return least * shortest, 0 if longest == 0 else longest and most and longest * most
        case JoinedParts(parts):
            bounds = [_lengths(each) for each in parts]
            highest = [high for _, high in bounds]
            return sum(low for low, _ in bounds), None if None in highest else sum(filter(None, highest))
        case Alternatives(parts):
            bounds = [_lengths(each) for each in parts]
            highest = [high for _, high in bounds]
            return min(low for low, _ in bounds), None if None in highest else max(filter(None, highest), default=0)
    return 0, 0
