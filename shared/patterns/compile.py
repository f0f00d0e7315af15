"""The program that compiles a pattern. It limits its own memory and CPU time.

Arguments: the limits of memory in bytes, CPU time in seconds, and number of states. Standard input: the pattern, which
begins with BEGIN. Standard output: the table, int32 [S, 256] by state and byte (-1: none), then whether each state is
final, a byte each; or the reason of an error. The first state is that after BEGIN; each is reached from it. Standard
error ends with the CPU time of the program in seconds. The program imports nothing of the project, to start in
milliseconds.
"""

import resource
import signal
import sys
import time
from array import array
from collections.abc import Mapping, Set

INVALID, TOO_LARGE = 3, 4  # exit status
BYTES = 256
END = BYTES  # the vocabulary's end token
# Precedes the pattern. Index also builds an automaton that searches for a match at every position, which can need
# exponentially many states. No text contains this character. A match can begin only there, which needs few states.
BEGIN = "\U0010fffe"

Transitions = Mapping[int, Mapping[int, int]]


def main(max_memory: int, max_cpu_s: float, max_states: int) -> int:
    """Returns: the exit status."""
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    signal.setitimer(signal.ITIMER_PROF, max_cpu_s)  # its signal ends the program; RLIMIT_CPU has whole seconds only
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
    start: int | None = index.get_initial_state()
    for byte in BEGIN.encode():
        start = transitions.get(start, {}).get(byte) if start is not None else None
    final = index.get_final_states()
    states = reached(start, transitions) if start is not None else []
    sys.stdout.buffer.write(table(transitions, states, final))
    sys.stderr.write(f"\n{time.process_time()}")
    return 0


def reached(first: int, transitions: Transitions) -> list[int]:
    """A state and all after it, breadth first."""
    found = {first: None}
    waiting = [first]
    for state in waiting:
        after = {target: None for byte, target in transitions.get(state, {}).items() if byte != END}
        waiting += [target for target in after if target not in found]
        found |= after
    return waiting


def table(transitions: Transitions, states: list[int], final: Set[int]) -> bytes:
    """The table's rows and columns of these states."""
    numbers = {state: number for number, state in enumerate(states)}
    next_state = array("i", [-1]) * (BYTES * len(states))
    for row, state in enumerate(states):
        for token, target in transitions.get(state, {}).items():
            if token != END:
                next_state[BYTES * row + token] = numbers[target]
    return next_state.tobytes() + bytes(state in final for state in states)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
