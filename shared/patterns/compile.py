"""`python -m shared.patterns.compile MAX_STATES MAX_MEMORY`: a pattern from standard input to its automaton."""

import resource
import sys
from collections.abc import Mapping

import msgspec
import numpy as np
from outlines_core import Index, Vocabulary

from shared.arrays import Bool, Int32
from shared.patterns.automaton import CompiledPattern, without_anchors

BYTES = 256
NO_TOKEN = BYTES
NO_STATE = -1
# Ends every text, so that only whole texts match: at a state in which a shorter text already matches, `Index` drops the
# ways on that do not match at once. The character never occurs in texts.
END = "\U0010ffff"
# Begins every text. `Index` also compiles the search for the pattern at every place of a text, which can take
# exponentially many states. The search can only begin at this character, which never occurs in texts either.
BEGIN = "\U0010fffe"

SYNTAX = "the syntax of Rust's regex, without look-around, back-references and word boundaries"

Transitions = Mapping[int, Mapping[int, int]]


def main() -> None:
    """Write a CompiledPattern to standard output."""
    max_states, max_memory = (int(argument) for argument in sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    found = compile_in_process(sys.stdin.buffer.read().decode(), max_states)
    sys.stdout.buffer.write(msgspec.msgpack.encode(found))


def compile_in_process(pattern: str, max_states: int) -> CompiledPattern:
    """Compile without limits on memory and time."""
    pattern = without_anchors(pattern)
    vocabulary = Vocabulary(NO_TOKEN, {bytes([byte]): [byte] for byte in range(BYTES)})
    try:
        index = Index(f"{BEGIN}(?:{pattern}){END}", vocabulary)
    except ValueError as error:
        if "incompatible" in str(error):  # a state that nothing leaves
            return CompiledPattern("no text matches the pattern")
        reason = str(error).splitlines()[0].removeprefix("Failed to build DFA ")
        return CompiledPattern(f"the pattern is not valid ({reason}); accepted: {SYNTAX}")
    moves, finals = index.get_transitions(), index.get_final_states()
    start = _after(moves, index.get_initial_state(), BEGIN)
    number = {state: at for at, state in enumerate([start, *(state for state in moves if state != start)])}
    next_state = np.full((len(number), BYTES), -1, dtype=np.int32)
    for state, ways in moves.items():
        for byte, target in ways.items():
            if byte != NO_TOKEN and target not in finals:
                next_state[number[state], byte] = number[target]
    is_accepting = np.array([_after(moves, state, END) in finals for state in number], dtype=np.bool_)
    kept = _leading_to(next_state, is_accepting) & _reached(next_state)
    if not kept[0]:
        return CompiledPattern("no text matches the pattern")
    if (count := int(kept.sum())) > max_states:
        return CompiledPattern(f"the pattern has {count} states; it may have {max_states}")
    renumbered = np.append(np.where(kept, kept.cumsum() - 1, -1), -1)  # the last one: of -1
    columns = renumbered[next_state[kept]].astype(np.int16), is_accepting[kept]
    return CompiledPattern("", *(column.tobytes() for column in columns))


def _after(moves: Transitions, state: int, text: str) -> int:
    """The state after this text; NO_STATE: there is none."""
    for byte in text.encode():
        state = moves.get(state, {}).get(byte, NO_STATE)
    return state


def _leading_to(next_state: Int32, is_accepting: Bool) -> Bool:
    """The states from which some text leads to an accepting one. Shapes: [S, 256], [S] -> [S]."""
    leads = np.append(is_accepting, False)
    while True:
        more = np.append(leads[:-1] | leads[next_state].any(axis=1), False)
        if (more == leads).all():
            return leads[:-1]
        leads = more


def _reached(next_state: Int32) -> Bool:
    """The states to which some text leads from the first one. Shapes: [S, 256] -> [S]."""
    reached = np.zeros(len(next_state), dtype=np.bool_)
    new: Int32 = np.zeros(1, dtype=np.int32)
    while len(new):
        reached[new] = True
        targets: Int32 = np.unique(next_state[new])
        new = targets[(targets >= 0) & ~reached[targets]]
    return reached


if __name__ == "__main__":
    main()
