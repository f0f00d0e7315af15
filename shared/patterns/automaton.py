"""The automaton of a pattern, over the bytes of a text.

outlines-core compiles what `read_regex` does not know. It has no limit of its own, and a few characters such as
(a|b)*a(a|b){30} describe billions of states. So it runs in a process with limits.
"""

import subprocess
import sys
from functools import lru_cache

import numpy as np

from shared.errors import BadInput, RetryLater
from shared.patterns import compile as program
from shared.patterns.byte_automaton import MAX_STATES, WRITTEN, PatternAutomaton, merged, read_automaton, useful
from shared.patterns.character_classes import LATIN, with_whole_characters
from shared.patterns.characters import ALL
from shared.patterns.compile_budget import LARGE, BudgetExceeded, TooLarge, current_budget
from shared.patterns.counted_regex import without_limit
from shared.patterns.look_ahead import joined_with_rest
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import NOTHING, Characters, Compiled, FormPart, RepeatedPart
from shared.patterns.regex import UnknownSyntaxError, read_regex

MAX_RAW_STATES = 40_000  # before states with the same continuations are merged
MAX_MEMORY = 1 << 30  # bytes, of the process's addresses
KEPT = 64  # compiled patterns
MAX_RUN_S = 4 * LARGE.seconds  # by the wall clock, also with a small budget: a busy machine starts programs slowly
ANY_TEXT = RepeatedPart(Characters(ALL))
TOO_LARGE = f"the pattern is too large: it may have {MAX_STATES} states and take {LARGE.seconds:g} s to compile"
SYNTAX = "the syntax of Rust's regex and look-ahead, without look-behind, back-references and word boundaries"


def compile_pattern(pattern: str) -> PatternAutomaton:
    """Compile a pattern, or take it from the cache. May take seconds; in event loops, call it in a thread. If it is too
    large with all characters, its classes and sets have only those up to U+024F, the Latin ones.

    Raises: BadInput if the pattern is not valid, no text matches it, or it has more than MAX_STATES states or takes
    too much time or memory; RetryLater if the machine is too busy.
    """
    found = _compiled(pattern)
    if isinstance(found, str):
        raise BadInput(found, "pattern")
    return found


@lru_cache(KEPT)
def _compiled(pattern: str) -> PatternAutomaton | str:
    """Returns: the automaton, or the error."""
    try:
        found = _of_regex(pattern)
    except TooLarge:  # not returned, so not cached: a larger budget may be enough
        raise
    except BadInput as error:
        return error.message
    if (count := len(found.accepting)) > MAX_STATES:
        return f"the pattern has {count} states; it may have {MAX_STATES}"
    return found


def _of_regex(pattern: str) -> PatternAutomaton:
    """Raises: BadInput; RetryLater if the machine is too busy."""
    if pattern.startswith(WRITTEN):
        return read_automaton(pattern)
    pattern = with_whole_characters(pattern)
    try:
        part = read_regex(pattern)
    except TooLarge:
        raise
    except (BadInput, UnknownSyntaxError) as unknown:
        return _read(_run(without_anchors(pattern), str(unknown)))
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
        raise TooLarge(TOO_LARGE)
    whole = joined_with_rest(part, NOTHING, ANY_TEXT)
    if whole is None:
        raise BadInput("no text matches the pattern", "pattern")
    return merged(automaton_of(whole))


def _run(pattern: str, unknown: str) -> bytes:
    """The program's output. `unknown`: what `read_regex` does not know. Raises: BadInput; RetryLater if the machine is
    too busy."""
    budget = current_budget()
    limits = [str(limit) for limit in (MAX_MEMORY, budget.seconds, MAX_RAW_STATES)]
    command = [sys.executable, "-P", program.__file__, *limits]
    try:
        whole = rf"{program.BEGIN}(?:{pattern})\z".encode()
        ran = subprocess.run(command, input=whole, capture_output=True, timeout=MAX_RUN_S, check=False)  # noqa: S603
    except UnicodeEncodeError as error:
        raise BadInput(f"the pattern is not valid: {error.reason}") from None
    except subprocess.TimeoutExpired:  # of the wall clock: the machine is too busy, whatever the pattern
        raise RetryLater("the machine is too busy to compile the pattern") from None
    if ran.returncode == program.INVALID:
        if b"no transitions" in ran.stdout:
            raise BadInput("no text matches the pattern")
        raise BadInput(f"the pattern is not valid ({unknown}); accepted: {SYNTAX}")
    if ran.returncode:  # too many states, or out of memory or of time
        raise BudgetExceeded(TOO_LARGE)
    budget.spend(seconds=float(ran.stderr.split()[-1]))
    return ran.stdout


def without_anchors(pattern: str) -> str:
    """Without ^ at its beginning and $ at its end, as the whole text always has to match."""
    pattern = pattern.removeprefix("^")
    before_end = pattern.removesuffix("$")
    backslashes = len(before_end) - len(before_end.rstrip("\\"))
    return pattern if backslashes % 2 else before_end


def _read(data: bytes) -> PatternAutomaton:
    """The automaton of the program's table and its final states. Raises: BadInput if it has no texts."""
    states = len(data) // (4 * program.BYTES + 1)
    table = np.frombuffer(data, np.int32, program.BYTES * states).reshape(states, program.BYTES)
    final = np.frombuffer(data, np.bool_, states, 4 * program.BYTES * states)
    found = useful(PatternAutomaton.plain(table, final)) if states else None
    if found is None:
        raise BadInput("no text matches the pattern")
    return merged(found)
