"""The automaton of a pattern, over the bytes of a text."""

from functools import lru_cache

from shared.errors import BadInput
from shared.patterns.byte_automaton import MAX_STATES, WRITTEN, PatternAutomaton, merged, read_automaton
from shared.patterns.character_classes import LATIN, with_whole_characters
from shared.patterns.characters import ALL
from shared.patterns.compile_budget import BudgetExceeded, TooLarge
from shared.patterns.counted_regex import Counted, without_limits
from shared.patterns.look_ahead import joined_with_rest
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import NOTHING, Characters, Compiled, FormPart, JoinedParts, RepeatedPart
from shared.patterns.regex import read_regex

MAX_RAW_STATES = 40_000  # before states with the same continuations are merged
KEPT = 64  # compiled patterns
ANY_TEXT = RepeatedPart(Characters(ALL))


def compile_pattern(pattern: str) -> PatternAutomaton:
    """Compile a pattern, or take it from the cache. May take seconds; in event loops, call it in a thread. If it is too
    large with all characters, its classes and sets have only those up to U+024F, the Latin ones.

    Raises: BadInput if the pattern is not valid, no text matches it, or it is too large.
    """
    found = _compiled(pattern)
    if isinstance(found, str):
        raise BadInput(found, "pattern")
    return found


@lru_cache(KEPT)
def _compiled(pattern: str) -> PatternAutomaton | str:
    """Returns: the automaton, or the error."""
    try:
        return _of_text(pattern)
    except TooLarge:  # not returned, so not cached: a larger budget may be enough
        raise
    except BadInput as error:
        return error.message


def _of_text(pattern: str) -> PatternAutomaton:
    if pattern.startswith(WRITTEN):
        return read_automaton(pattern)
    pattern = with_whole_characters(pattern)
    part = read_regex(pattern)
    counted = without_limits(part)
    if counted is not None and counted.is_exact:
        return of_counted(counted)
    try:
        return of_regex(part)
    except BudgetExceeded:
        raise
    except TooLarge:
        latin = read_regex(pattern, LATIN)
    try:
        return of_regex(latin)
    except BudgetExceeded:
        raise
    except TooLarge:
        if counted is None:
            raise
        return of_counted(counted)


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
    found = joined_with_rest(part, after, any_text)
    if found is None:
        raise BadInput("no text matches the pattern", "pattern")
    return merged(automaton_of(JoinedParts((before, found))))
