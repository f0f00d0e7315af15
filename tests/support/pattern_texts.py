"""Random texts of a pattern."""

from random import Random

import numpy as np

from shared.arrays import Int64
from shared.patterns.automaton import PatternAutomaton

LONG = 60  # bytes, from which a text takes the shortest way to its end
END_SHARE = 0.3  # chance to end wherever that is possible


def draw_text(automaton: PatternAutomaton, random: Random) -> str:
    """Walk at random through the automaton to one of its ends."""
    left = _bytes_left(automaton)
    state, text = 0, b""
    while not automaton.accepting[state] or (random.random() >= END_SHARE and (automaton.next_state[state] >= 0).any()):
        ways = np.flatnonzero(automaton.next_state[state] >= 0)
        if len(text) >= LONG:
            if automaton.accepting[state]:
                break
            ways = ways[left[automaton.next_state[state, ways]] < left[state]]
        byte = random.choice(ways.tolist())
        text += bytes([byte])
        state = int(automaton.next_state[state, byte])
    return text.decode()


def _bytes_left(automaton: PatternAutomaton) -> Int64:
    """The fewest bytes from each state to an end."""
    left = np.where(automaton.accepting, 0, 10**6).astype(np.int64)
    while True:
        shorter = np.minimum(left, np.append(left, 10**6)[automaton.next_state].min(axis=1) + 1)
        if (shorter == left).all():
            return left
        left = shorter
