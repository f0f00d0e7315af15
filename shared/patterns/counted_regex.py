"""Patterns such as ^[A-Z]\\w{1,99}$, in which one character alone has a large limit of its repetitions.

The length of a text then gives the number of repetitions, so that one counter takes the place of a state for each
number.
"""

from collections.abc import Iterator, Sequence

from shared.patterns.network import BEGIN, END
from shared.patterns.parts import (
    Alternatives,
    Anchor,
    Characters,
    FormPart,
    JoinedParts,
    MergedCharacters,
    RepeatedPart,
)

COUNTED = 2_000  # states of the repetition, above which a counter takes their place


def without_limit(whole: FormPart, *, is_searched: bool = False) -> tuple[FormPart, int] | None:
    """The part without the limit of its only large repetition, and the most characters of a text; together they are the
    same texts. `is_searched`: text may be around it if it has no ^ and $. None for other patterns."""
    parts = list(_flat(whole))
    is_begun, is_ended = _is_anchor(parts[:1], BEGIN), _is_anchor(parts[-1:], END)
    if is_searched and not (is_begun and is_ended):
        return None
    parts = parts[is_begun : len(parts) - is_ended]
    for at, part in enumerate(parts):
        if isinstance(part, RepeatedPart) and part.most and part.size > COUNTED and _length(part.part) == 1:
            rest = _length(JoinedParts((*parts[:at], *parts[at + 1 :])))
            unlimited = JoinedParts((*parts[:at], RepeatedPart(part.part, part.least), *parts[at + 1 :]))
            return None if rest is None else (unlimited, rest + part.most)
    return None


def _is_anchor(parts: Sequence[FormPart], kind: int) -> bool:
    return any(isinstance(part, Anchor) and part.kind == kind for part in parts)


def _flat(part: FormPart) -> Iterator[FormPart]:
    if isinstance(part, JoinedParts):
        for each in part.parts:
            yield from _flat(each)
    else:
        yield part


def _length(part: FormPart) -> int | None:
    """The characters of each of its texts; None if it differs."""
    match part:
        case Characters() | MergedCharacters():
            return 1
        case RepeatedPart(inner, least, most) if least == most:
            length = _length(inner)
            return None if length is None else least * length
        case JoinedParts(parts):
            lengths = [_length(each) for each in parts]
            return None if None in lengths else sum(filter(None, lengths))
        case Alternatives(parts):
            lengths = [_length(each) for each in parts]
            return lengths[0] if len(set(lengths)) == 1 else None
    return None
