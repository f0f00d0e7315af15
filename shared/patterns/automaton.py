"""The automaton of a pattern, over the bytes of a text."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from shared.errors import BadInput
from shared.patterns.anchors import ANYTHING, KINDS, Anchor, LookAhead, condition
from shared.patterns.byte_automaton import MAX_STATES, WRITTEN, PatternAutomaton, merged, product, read_automaton
from shared.patterns.characters import ALL, LATIN, with_whole_characters
from shared.patterns.compile_budget import TooLarge, first_that_fits
from shared.patterns.counted_regex import Counted, without_limits
from shared.patterns.part_automaton import automaton_of, texts_of
from shared.patterns.parts import (
    NOTHING,
    Alternatives,
    Characters,
    Compiled,
    FormPart,
    JoinedParts,
    RepeatedPart,
    any_of,
    inner_parts,
)
from shared.patterns.regex import read_regex

MAX_RAW_STATES = 40_000  # before states with the same continuations are merged
ANY_TEXT = RepeatedPart(Characters(ALL))


@lru_cache(64)
def compile_pattern(pattern: str) -> PatternAutomaton:
    """Compile a pattern, or take it from the cache. May take seconds; in event loops, call it in a thread. If it is too
    large with all characters, its classes and sets have only those up to U+024F, the Latin ones.

    Raises: BadInput if the pattern is not valid, no text matches it, or it is too large.
    """
    if pattern.startswith(WRITTEN):
        return read_automaton(pattern)
    pattern = with_whole_characters(pattern)
    part = read_regex(pattern)
    ways = [lambda: of_regex(part), lambda: of_regex(read_regex(pattern, LATIN))]
    if (counted := without_limits(part)) is not None:
        ways.insert(0 if counted.is_exact else len(ways), lambda: of_counted(counted))
    return first_that_fits(*ways)


def of_counted(counted: Counted) -> PatternAutomaton:
    """The automaton of a regular expression's part, with a counter. Raises: as of_regex."""
    return automaton_of(Compiled(of_regex(counted.part), counted.longest))


def of_regex(
    part: FormPart, any_text: FormPart = ANY_TEXT, *, before: FormPart = NOTHING, after: FormPart = NOTHING
) -> PatternAutomaton:
    """The automaton of a regular expression's part, with texts before and after it. `any_text`: what may follow a
    look-ahead. Raises: BadInput if it is too large, or has no texts."""
    if part.size > MAX_RAW_STATES:  # before any work
        raise TooLarge(f"the pattern is too large: it may have {MAX_STATES} states", "pattern")
    found = _joined_with_rest(part, after, any_text)
    if found is None:
        raise BadInput("no text matches the pattern", "pattern")
    return merged(automaton_of(JoinedParts((before, found))))


def _joined_with_rest(part: FormPart, rest: FormPart, any_text: FormPart) -> FormPart | None:
    """The part and the rest of the text after it. Each look-ahead of the part becomes a condition on that rest; after
    the look-ahead's own texts comes `any_text`. None if no text is possible."""
    if not any(isinstance(each, LookAhead) for each in _all_parts(part)):
        return JoinedParts((part, rest))
    if isinstance(part, LookAhead):
        ahead = _joined_with_rest(part.part, any_text, any_text)
        if ahead is None:
            return rest if part.is_negative else None
        return _limited(rest, ahead, excluded=part.is_negative)
    if isinstance(part, JoinedParts):
        found: FormPart | None = rest
        for each in reversed(part.parts):
            found = _joined_with_rest(each, found, any_text) if found is not None else None
        return found
    ways: Sequence[FormPart] = part.parts if isinstance(part, Alternatives) else []
    if isinstance(part, RepeatedPart) and part.most == 1:
        ways = [NOTHING, part.part][part.least :]
    if not ways:  # a repetition, which raises BadInput when it is built
        return JoinedParts((part, rest))
    return any_of(_joined_with_rest(each, rest, any_text) for each in ways)


def _limited(rest: FormPart, ahead: FormPart, *, excluded: bool) -> FormPart | None:
    """The texts of `rest` that are also of `ahead`, or, if `excluded`, are not. Anchors in them depend on the character
    before, so that there is a way for each kind of it."""
    anchors = {each for part in (rest, ahead) for each in _all_parts(part) if isinstance(each, Anchor)}
    alike: dict[tuple[frozenset[int], ...], list[int]] = {}  # kinds, by what the conditions allow after them
    for kind in KINDS:
        alike.setdefault(tuple(each.condition[kind] for each in anchors), []).append(kind)
    ways: list[FormPart] = []
    for kinds in alike.values():
        found, other = texts_of(rest, kinds[0]), texts_of(ahead, kinds[0])
        if found is not None and other is not None:
            found = product(found, other, excluded=excluded)
        elif not excluded:
            found = None
        if found is not None:
            is_escaped = any(each.is_escaped for each in anchors)
            after = [Anchor(condition(kinds, ANYTHING), is_escaped)] if len(alike) > 1 else []
            ways.append(JoinedParts((*after, Compiled(found))))
    return any_of(ways)


def _all_parts(part: FormPart) -> Iterator[FormPart]:
    """The part and those within it, but not within a look-ahead."""
    yield part
    for each in inner_parts(part):
        yield from _all_parts(each)
