"""The automaton of a pattern, over the bytes of a text."""

from functools import lru_cache

from shared.errors import BadInput
from shared.patterns.byte_automaton import MAX_STATES, WRITTEN, PatternAutomaton, merged, read_automaton
from shared.patterns.character_classes import LATIN, with_whole_characters
from shared.patterns.characters import ALL
from shared.patterns.compile_budget import BudgetExceeded, TooLarge
from shared.patterns.counted_regex import without_limit
from shared.patterns.look_ahead import joined_with_rest
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import NOTHING, Characters, Compiled, FormPart, RepeatedPart
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
    try:
        counted = without_limit(part)
        return of_regex(part) if counted is None else automaton_of(Compiled(of_regex(counted[0]), counted[1]))
    except BudgetExceeded:
        raise
    except TooLarge:
        return of_regex(read_regex(pattern, LATIN))


def of_regex(part: FormPart) -> PatternAutomaton:
    """The automaton of a regular expression's part. Raises: BadInput if it is too large, or has no texts."""
    if part.size > MAX_RAW_STATES:  # before any work
        raise TooLarge(f"the pattern is too large: it may have {MAX_STATES} states", "pattern")
    whole = joined_with_rest(part, NOTHING, ANY_TEXT)
    if whole is None:
        raise BadInput("no text matches the pattern", "pattern")
    return merged(automaton_of(whole))
