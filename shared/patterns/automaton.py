"""Compiles a pattern to an automaton over bytes, in a child process.

outlines-core, which compiles it, has no limit of its own, and a few characters such as (a|b)*a(a|b){30} describe
billions of states. So the child's memory and time are limited.
"""

import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from shared.arrays import Bool, Int32
from shared.errors import BadInput

MAX_STATES = 8_000
MAX_SECONDS = 5.0
MAX_MEMORY = 1 << 30  # bytes, of the child's addresses
CACHED = 64  # compiled patterns


class CompiledPattern(msgspec.Struct, frozen=True):
    """The child's answer: an error, or the columns of a PatternAutomaton."""

    error: str = ""
    next_state: bytes = b""  # int16
    accepting: bytes = b""


@dataclass(frozen=True, slots=True)
class PatternAutomaton:
    """A pattern over bytes, from state 0. Each state leads to an accepting one. Shapes: S states."""

    next_state: Int32  # [S, 256], by state and byte; -1: no text continues so
    accepting: Bool  # [S]


def compile_pattern(pattern: str) -> PatternAutomaton:
    """Takes about 0.1 s; for event loops, in a thread.

    Raises: BadInput if the pattern is not valid, no text matches it, or it has more than MAX_STATES states or takes
    too much time or memory.
    """
    found = _compile(pattern)
    if found.error:
        raise BadInput(found.error, "pattern")
    next_state = np.frombuffer(found.next_state, dtype=np.int16).reshape(-1, 256)
    return PatternAutomaton(next_state.astype(np.int32), np.frombuffer(found.accepting, dtype=np.bool_))


@lru_cache(CACHED)
def _compile(pattern: str) -> CompiledPattern:
    command = [sys.executable, "-m", "shared.patterns.compile", str(MAX_STATES), str(MAX_MEMORY)]
    too_large = f"the pattern is too large: it may have {MAX_STATES} states and take {MAX_SECONDS:g} s to compile"
    try:
        ran = subprocess.run(  # noqa: S603  (this module's program)
            command, input=pattern.encode(), capture_output=True, timeout=MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return CompiledPattern(too_large)
    except UnicodeEncodeError as error:
        return CompiledPattern(f"the pattern is not valid: {error.reason}")
    if ran.returncode:  # it ran out of memory
        return CompiledPattern(too_large)
    return msgspec.msgpack.decode(ran.stdout, type=CompiledPattern)


def without_anchors(pattern: str) -> str:
    """Without ^ at its beginning and $ at its end, as the whole text always has to match."""
    pattern = pattern.removeprefix("^")
    before_end = pattern.removesuffix("$")
    backslashes = len(before_end) - len(before_end.rstrip("\\"))
    return pattern if backslashes % 2 else before_end
