"""The automaton of a part: makes its network deterministic, by the subset construction."""

from itertools import pairwise

import numpy as np

from shared.errors import BadInput
from shared.patterns.anchors import EDGE, without_anchors
from shared.patterns.byte_automaton import BYTES, MAX_STATES, NO_LOOP, PatternAutomaton, merged, useful
from shared.patterns.compile_budget import TooLarge, current_budget
from shared.patterns.network import MAX_NETWORK, Edge, Network
from shared.patterns.parts import FormPart


def automaton_of(part: FormPart) -> PatternAutomaton:
    """The automaton of a part's texts. Raises: BadInput if it is too large, or has no texts."""
    found = texts_of(part, EDGE)
    if found is None:
        raise BadInput("no text matches the pattern", "pattern")
    return found


def texts_of(part: FormPart, before: int) -> PatternAutomaton | None:
    """As `automaton_of`, after a character of the kind `before`. None: no text."""
    if part.size > MAX_NETWORK:
        raise TooLarge(f"the form is too large: it may have {MAX_STATES} states", "pattern")
    network = Network()
    start = network.add()
    end = part.build(network, start)
    ends = {end}
    if network.conditions:
        network, start, ends = without_anchors(network, start, end, before)
    found = useful(_SubsetConstruction(network, ends).automaton(start))
    if found is not None and len(found.accepting) > MAX_STATES:
        found = merged(found)
    if found is not None and (count := len(found.accepting)) > MAX_STATES:
        raise TooLarge(f"the form has {count} states; it may have {MAX_STATES}", "pattern")
    return found


class _SubsetConstruction:
    """Each set of a network's states that can be reached becomes one state."""

    def __init__(self, network: Network, ends: set[int]) -> None:
        self._network, self._ends = network, ends
        self._closures: dict[int, frozenset[int]] = {}
        self._numbers: dict[frozenset[int], int] = {}
        self._after: dict[frozenset[int], int] = {}  # by the states that edges lead to: the number of their closure
        self._sets: list[frozenset[int]] = []
        self._loops: dict[int, int] = {}  # loops that one set has several of are one loop: by loop, a lower one

    def automaton(self, start: int) -> PatternAutomaton:
        self._number(self._closure(start))
        rows: list[list[Edge]] = []
        budget = current_budget()
        for states in self._sets:  # to which _row adds
            rows.append(self._row(states))
            budget.spend(len(states))
            if len(self._sets) > 4 * MAX_STATES:
                raise TooLarge(f"the form is too large: it may have {MAX_STATES} states", "pattern")
        next_state = np.full((len(rows), BYTES), -1, np.int32)
        for state, row in enumerate(rows):
            for first, last, target in row:
                next_state[state, first : last + 1] = target
        loop = [self._loop_of(states) for states in self._sets]
        bounds = list(self._network.bounds)
        for own in range(len(bounds)):
            lowest = self._lowest(own)
            bounds[lowest] = min(bounds[lowest], bounds[own])
        return PatternAutomaton(
            next_state,
            np.array([not states.isdisjoint(self._ends) for states in self._sets]),
            np.array([self._lowest(each) if each >= 0 else each for each in loop], np.int32),
            np.array([not states.isdisjoint(self._network.counted) for states in self._sets]),
            tuple(bounds),
        )

    def _loop_of(self, states: frozenset[int]) -> int:
        found = {self._lowest(loop) for state in states if (loop := self._network.loop[state]) >= 0}
        for loop in found:
            if loop != min(found):
                self._loops[loop] = min(found)
        return min(found, default=NO_LOOP)

    def _lowest(self, loop: int) -> int:
        while loop in self._loops:
            loop = self._loops[loop]
        return loop

    def _number(self, states: frozenset[int]) -> int:
        found = self._numbers.setdefault(states, len(self._sets))
        if found == len(self._sets):
            self._sets.append(states)
        return found

    def _closure(self, state: int) -> frozenset[int]:
        """The states after no byte that matter: those with steps, the ends, and those of loops."""
        if state not in self._closures:
            found, waiting = {state}, [state]
            for each in waiting:
                new = [target for target in self._network.empty[each] if target not in found]
                found.update(new)
                waiting += new
            network = self._network
            self._closures[state] = frozenset(
                each
                for each in found
                if network.edges[each] or each in self._ends or each in network.counted or network.loop[each] >= 0
            )
        return self._closures[state]

    def _row(self, states: frozenset[int]) -> list[Edge]:
        edges = sorted(edge for state in states for edge in self._network.edges[state])
        if all(one[1] < other[0] for one, other in pairwise(edges)):
            return [(first, last, self._number(self._closure(target))) for first, last, target in edges]
        cuts = sorted({cut for first, last, _ in edges for cut in (first, last + 1)})
        row, begun, open_edges = [], 0, list[Edge]()
        for first, stop in pairwise(cuts):
            open_edges = [edge for edge in open_edges if edge[1] >= first]
            while begun < len(edges) and edges[begun][0] == first:
                open_edges.append(edges[begun])
                begun += 1
            if targets := frozenset(target for _, _, target in open_edges):
                if targets not in self._after:
                    self._after[targets] = self._number(frozenset().union(*map(self._closure, targets)))
                row.append((first, stop - 1, self._after[targets]))
        return row
