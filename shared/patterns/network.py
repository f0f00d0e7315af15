"""A network: a nondeterministic automaton over bytes, with steps that take no byte."""

from dataclasses import dataclass, field

from shared.patterns.byte_automaton import MAX_STATES, NO_LOOP
from shared.patterns.compile_budget import TooLarge

MAX_NETWORK = 60_000  # states of a network

Edge = tuple[int, int, int]  # first and last byte, and the state after them; above the bytes: a number of a condition
Condition = tuple[frozenset[int], ...]  # by the kind of the character before a place, the kinds allowed after it


@dataclass(slots=True)
class Network:
    """States by number, each with its steps and its loop."""

    edges: list[list[Edge]] = field(default_factory=list)
    empty: list[list[int]] = field(default_factory=list)  # states after no byte
    loop: list[int] = field(default_factory=list)  # of each state; NO_LOOP: none
    counted: set[int] = field(default_factory=set)  # states whose arrivals their loop counts
    bounds: list[int] = field(default_factory=list)  # of each loop: the highest count
    current: int = NO_LOOP  # the loop of new states
    conditions: list[Condition] = field(default_factory=list)  # of anchors
    is_escaped: bool = False  # texts are as JSON writes them in a string

    def add(self) -> int:
        """A new state."""
        if len(self.edges) >= MAX_NETWORK:
            raise TooLarge(f"the form is too large: it may have {MAX_STATES} states", "pattern")
        self.edges.append([])
        self.empty.append([])
        self.loop.append(self.current)
        return len(self.edges) - 1

    def step(self, state: int, first: int, last: int) -> int:
        """A new state after `state` and a byte from `first` to `last`."""
        target = self.add()
        self.edges[state].append((first, last, target))
        return target
