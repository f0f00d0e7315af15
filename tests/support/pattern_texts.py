"""Random texts of a pattern."""

from random import Random

import numpy as np

from shared.arrays import Int64
from shared.patterns.byte_automaton import PatternAutomaton

LONG = 60  # bytes, from which a text takes the shortest way to its end
HASTE = 0.1  # chance of a byte on the shortest way
END_SHARE = 0.3  # chance to end wherever that is possible


def draw_text(automaton: PatternAutomaton, random: Random) -> str:
    """Walk at random through the automaton to one of its ends. Raises: IndexError if a counter leaves no way."""
    left = _bytes_left(automaton)
    state, count, text = 0, 0, b""
    while True:
        targets = automaton.next_state[state]
        counts = automaton.counts[targets] + np.where(automaton.loop[targets] == automaton.loop[state], count, 0)
        bounds = np.array([*automaton.bounds, 10**9])[automaton.loop[targets]]
        ways = np.flatnonzero((targets >= 0) & (counts <= bounds))
        if automaton.accepting[state] and (random.random() < END_SHARE or len(text) >= LONG or not len(ways)):
            return text.decode()
        if len(text) >= LONG or random.random() < HASTE:
            shorter = ways[left[targets[ways]] < left[state]]
            ways = shorter if len(shorter) else ways
        byte = random.choice(ways.tolist())
        text, count, state = text + bytes([byte]), int(counts[byte]), int(targets[byte])


def _bytes_left(automaton: PatternAutomaton) -> Int64:
    """The fewest bytes from each state to an end."""
    left = np.where(automaton.accepting, 0, 10**6).astype(np.int64)
    while True:
        shorter = np.minimum(left, np.append(left, 10**6)[automaton.next_state].min(axis=1) + 1)
        if (shorter == left).all():
            return left
        left = shorter
