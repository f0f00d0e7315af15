"""The program that compiles a pattern, whose process limits the memory and the time.

Arguments: bytes of memory, seconds of CPU time, states. Standard input: the pattern. Standard output: the table, int32
[S, 256] by state and byte (-1: none), then whether each state is final, a byte each; or the reason of an error. It
imports nothing of the project, to start in milliseconds.
"""

import resource
import sys
from array import array
from collections.abc import Mapping, Set

INVALID, TOO_LARGE = 3, 4  # exit status
BYTES = 256
END = BYTES  # the vocabulary's end token

Transitions = Mapping[int, Mapping[int, int]]


def main(max_memory: int, max_cpu_s: int, max_states: int) -> int:
    """Returns: the exit status."""
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    resource.setrlimit(resource.RLIMIT_CPU, (max_cpu_s, max_cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from outlines_core import Index, Vocabulary  # noqa: PLC0415  (within the limits)

    pattern = sys.stdin.buffer.read().decode()
    try:
        index = Index(pattern, Vocabulary(END, {bytes([byte]): [byte] for byte in range(BYTES)}))
    except ValueError as error:
        sys.stdout.write(str(error))
        return INVALID
    transitions = index.get_transitions()
    if len(transitions) > max_states:
        return TOO_LARGE
    sys.stdout.buffer.write(table(transitions, index.get_initial_state(), index.get_final_states()))
    return 0


def table(transitions: Transitions, initial: int, final: Set[int]) -> bytes:
    """The columns, with the initial state first."""
    names = [initial, *(name for name in transitions if name != initial)]
    numbers = {name: number for number, name in enumerate(names)}
    next_state = array("i", [-1]) * (BYTES * len(names))
    for row, name in enumerate(names):
        for token, target in transitions.get(name, {}).items():
            if token != END:
                next_state[BYTES * row + token] = numbers[target]
    return next_state.tobytes() + bytes(name in final for name in names)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
