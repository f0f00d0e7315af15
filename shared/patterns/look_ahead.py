"""Look-ahead in the parts of a regular expression."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.errors import BadInput
from shared.patterns.anchors import ANYTHING, KINDS, Anchor, condition
from shared.patterns.byte_automaton import product
from shared.patterns.part_automaton import texts_of
from shared.patterns.parts import (
    NOTHING,
    Alternatives,
    Compiled,
    FormPart,
    JoinedParts,
    RepeatedPart,
    any_of,
    inner_parts,
)


@dataclass(frozen=True, slots=True)
class LookAhead(FormPart):
    """A look-ahead: the rest of the text begins with the part, or, if `is_negative`, does not."""

    part: FormPart
    is_negative: bool
    size = 1

    def build(self, *_: object) -> int:
        """Raises: BadInput, for one that `joined_with_rest` has not replaced."""
        raise BadInput("look-ahead within a repetition is not supported", "pattern")


def joined_with_rest(part: FormPart, rest: FormPart, any_text: FormPart) -> FormPart | None:
    """The part and the rest of the text after it. Each look-ahead of the part becomes a condition on that rest; after
    the look-ahead's own texts comes `any_text`. None if no text is possible."""
    if not any(isinstance(each, LookAhead) for each in _all_parts(part)):
        return JoinedParts((part, rest))
    if isinstance(part, LookAhead):
        ahead = joined_with_rest(part.part, any_text, any_text)
        if ahead is None:
            return rest if part.is_negative else None
        return _limited(rest, ahead, excluded=part.is_negative)
    if isinstance(part, JoinedParts):
        found: FormPart | None = rest
        for each in reversed(part.parts):
            found = joined_with_rest(each, found, any_text) if found is not None else None
        return found
    ways: Sequence[FormPart] = part.parts if isinstance(part, Alternatives) else []
    if isinstance(part, RepeatedPart) and part.most == 1:
        ways = [NOTHING, part.part][part.least :]
    if not ways:  # a repetition, which raises BadInput when it is built
        return JoinedParts((part, rest))
    return any_of(joined_with_rest(each, rest, any_text) for each in ways)


def _limited(rest: FormPart, ahead: FormPart, *, excluded: bool) -> FormPart | None:
    """The texts of `rest` that are also of `ahead`, or, if `excluded`, are not. Anchors in them depend on the character
    before, so that there is a way for each kind of it."""
    conditions = {each.condition for part in (rest, ahead) for each in _all_parts(part) if isinstance(each, Anchor)}
    alike: dict[tuple[frozenset[int], ...], list[int]] = {}  # kinds, by what the conditions allow after them
    for kind in KINDS:
        alike.setdefault(tuple(each[kind] for each in conditions), []).append(kind)
    ways: list[FormPart] = []
    for kinds in alike.values():
        found, other = texts_of(rest, kinds[0]), texts_of(ahead, kinds[0])
        if found is not None and other is not None:
            found = product(found, other, excluded=excluded)
        elif not excluded:
            found = None
        if found is not None:
            after = [Anchor(condition(kinds, ANYTHING))] if len(alike) > 1 else []
            ways.append(JoinedParts((*after, Compiled(found))))
    return any_of(ways)


def _all_parts(part: FormPart) -> Iterator[FormPart]:
    """The part and those within it, but not within a look-ahead."""
    yield part
    for each in inner_parts(part):
        yield from _all_parts(each)
