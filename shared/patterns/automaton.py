"""The automaton of a pattern, over the bytes of a text.

outlines-core, which compiles it, has no limit of its own, and a few characters such as (a|b)*a(a|b){30} describe
billions of states. So it runs in a process with limits.
"""

import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from shared.arrays import Bool, Int32
from shared.errors import BadInput, RetryLater
from shared.patterns import compile as program

MAX_STATES = 8_000
MAX_RAW_STATES = 40_000  # before states with the same continuations are merged
MAX_SECONDS = 5
MAX_MEMORY = 1 << 30  # bytes, of the process's addresses
KEPT = 64  # compiled patterns
MAX_ROUNDS = 100  # of the merging; an automaton that needs more, such as that of a{500}, has few equal states
MAX_MERGED = 1 << 26  # entries of its table that all rounds read: about a second
TOO_LARGE = f"the pattern is too large: it may have {MAX_STATES} states and take {MAX_SECONDS} s to compile"
SYNTAX = "the syntax of Rust's regex, without look-around, back-references and word boundaries"


@dataclass(frozen=True, slots=True)
class PatternAutomaton:
    """A pattern over bytes, from state 0. Each state is reached and leads to an accepting one. Shapes: S states."""

    next_state: Int32  # [S, 256], by state and byte; -1: no text continues so
    accepting: Bool  # [S]

    def accepts(self, text: str) -> bool:
        """Whether the whole text matches."""
        state = 0
        for byte in text.encode(errors="surrogatepass"):
            state = int(self.next_state[state, byte])
            if state < 0:
                return False
        return bool(self.accepting[state])


def compile_pattern(pattern: str) -> PatternAutomaton:
    """Takes 0.05 s for a new pattern, seconds for a large one; in event loops, call it in a thread.

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
        found = _merged(*_read(_run(pattern)))
    except BadInput as error:
        return error.message
    if not len(found.accepting):
        return "no text matches the pattern"
    if (count := len(found.accepting)) > MAX_STATES:
        return f"the pattern has {count} states; it may have {MAX_STATES}"
    return found


def _run(pattern: str) -> bytes:
    """The program's output. Raises: BadInput; RetryLater if the machine is too busy."""
    limits = [str(limit) for limit in (MAX_MEMORY, MAX_SECONDS, MAX_RAW_STATES)]
    command = [sys.executable, "-P", program.__file__, *limits]
    try:
        whole = rf"{program.BEGIN}(?:{without_anchors(pattern)})\z".encode()
        ran = subprocess.run(command, input=whole, capture_output=True, timeout=4 * MAX_SECONDS, check=False)  # noqa: S603
    except UnicodeEncodeError as error:
        raise BadInput(f"the pattern is not valid: {error.reason}") from None
    except subprocess.TimeoutExpired:  # of the wall clock: the machine is too busy, whatever the pattern
        raise RetryLater("the machine is too busy to compile the pattern") from None
    if ran.returncode == program.INVALID:
        reason = ran.stdout.decode(errors="replace").partition("\n")[0].removeprefix("Failed to build DFA ")
        if "no transitions" in reason:
            raise BadInput("no text matches the pattern")
        raise BadInput(f"the pattern is not valid ({reason}); accepted: {SYNTAX}")
    if ran.returncode:  # too many states, or out of memory or of time
        raise BadInput(TOO_LARGE)
    return ran.stdout


def longest_text(automaton: PatternAutomaton) -> int | None:
    """The bytes of its longest text; None if there is none, as texts can repeat a part without end."""
    following = [set(row[row >= 0].tolist()) for row in automaton.next_state]
    waits_for = [0] * len(following)
    for target in chain.from_iterable(following):
        waits_for[target] += 1
    longest, ready, done = [0] * len(following), [state for state, n in enumerate(waits_for) if n == 0], 0
    while ready:
        state, done = ready.pop(), done + 1
        for target in following[state]:
            longest[target] = max(longest[target], longest[state] + 1)
            waits_for[target] -= 1
            if not waits_for[target]:
                ready.append(target)
    return max(longest) if done == len(following) else None


def without_anchors(pattern: str) -> str:
    """Without ^ at its beginning and $ at its end, as the whole text always has to match."""
    pattern = pattern.removeprefix("^")
    before_end = pattern.removesuffix("$")
    backslashes = len(before_end) - len(before_end.rstrip("\\"))
    return pattern if backslashes % 2 else before_end


def _read(data: bytes) -> tuple[Int32, Bool]:
    """The program's table and its final states."""
    states = len(data) // (4 * program.BYTES + 1)
    table = np.frombuffer(data, np.int32, program.BYTES * states).reshape(states, program.BYTES)
    return table, np.frombuffer(data, np.bool_, states, 4 * program.BYTES * states)


def _merged(table: Int32, accepting: Bool) -> PatternAutomaton:
    """Merge the states with the same continuations, by refinement of a partition (Moore 1956)."""
    columns = np.unique(table, axis=1)  # bytes with equal transitions count once
    block, count = accepting.astype(np.int32), 0
    for _ in range(min(MAX_ROUNDS, MAX_MERGED // max(1, columns.size))):
        rows = np.ascontiguousarray(np.column_stack([block, np.append(block, -1)[columns]]).astype(np.int32))
        keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        block = inverse.ravel().astype(np.int32)
        if len(first) == count:
            break
        count = len(first)
    else:
        return PatternAutomaton(table, accepting)
    order = np.argsort(first, kind="stable")  # state 0 stays the first
    number = np.append(np.argsort(order).astype(np.int32)[block], np.int32(-1))
    return PatternAutomaton(number[table[first[order]]], accepting[first[order]])
