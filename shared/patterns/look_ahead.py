"""Look-ahead in the parts of a regular expression."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import BadInput
from shared.patterns.byte_automaton import product
from shared.patterns.part_automaton import automaton_of
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
    if not _has_look(part):
        return JoinedParts((part, rest))
    if isinstance(part, LookAhead):
        ahead = joined_with_rest(part.part, any_text, any_text)
        if ahead is None:
            return rest if part.is_negative else None
        remaining = product(automaton_of(rest), automaton_of(ahead), excluded=part.is_negative)
        return Compiled(remaining) if remaining is not None else None
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


def _has_look(part: FormPart) -> bool:
    return isinstance(part, LookAhead) or any(map(_has_look, inner_parts(part)))
