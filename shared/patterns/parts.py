"""The parts that texts are made of, and the automaton of a text.

Each part adds its states to a network: an automaton that may be in several states at once and has steps that take no
byte. `automaton_of` makes one of it that is in one state at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

import numpy as np

from shared.errors import BadInput
from shared.patterns.byte_automaton import BYTES, MAX_STATES, NO_LOOP, PatternAutomaton, merged, useful
from shared.patterns.compile_budget import TooLarge, current_budget

MAX_NETWORK = 60_000  # states of a network
UNROLLED = 512  # states of a bounded repetition, up to which each count has states of its own
UNROLLED_COUNTERS = 2_000  # the same, of parts that have a counter themselves
# Anchors, as steps that take no byte: begin and end of the text, and of a line.
BEGIN, END, BEGIN_LINE, END_LINE = range(BYTES, BYTES + 4)
NEWLINE = 10
SURROGATES = (0xD800, 0xDFFF)
MUST_ESCAPE = ((0, 31), (34, 34), (92, 92), (127, 127))  # in a JSON string; DEL by our choice
ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 47: "/", 92: "\\"}  # by character, after a backslash

Range = tuple[int, int]  # first and last
Edge = tuple[int, int, int]  # first and last byte, and the state after them


@dataclass(slots=True)
class Network:
    """States by number, each with its steps and its loop."""

    edges: list[list[Edge]] = field(default_factory=list)
    empty: list[list[int]] = field(default_factory=list)  # states after no byte
    loop: list[int] = field(default_factory=list)
    counted: set[int] = field(default_factory=set)
    bounds: list[int] = field(default_factory=list)
    current: int = NO_LOOP  # the loop of new states
    has_anchors: bool = False

    def add(self) -> int:
        """A new state."""
        if len(self.edges) >= MAX_NETWORK:
            raise TooLarge(f"the form is too large: it may have {MAX_STATES} states", "pattern")
        self.edges.append([])
        self.empty.append([])
        self.loop.append(self.current)
        return len(self.edges) - 1

    def step(self, state: int, first: int, last: int) -> int:
        """A new state after a byte."""
        target = self.add()
        self.edges[state].append((first, last, target))
        return target


class FormPart(Protocol):
    """A part of a text."""

    @property
    def size(self) -> int:
        """About the number of its states."""

    @property
    def has_counter(self) -> bool:
        """Whether a loop is in it."""

    def build(self, network: Network, start: int) -> int:
        """Add the part after a state. Returns: the state after the part."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A part without parts."""

    has_counter = False


@dataclass(frozen=True, slots=True)
class Literal(Plain):
    text: str

    @property
    def size(self) -> int:
        return len(self.text)

    def build(self, network: Network, start: int) -> int:
        for byte in self.text.encode():
            start = network.step(start, byte, byte)
        return start


@dataclass(frozen=True, slots=True)
class Characters(Plain):
    """One character of these ranges of codes; `escaped`: as JSON writes it in a string."""

    codes: tuple[Range, ...]
    escaped: bool = False

    @property
    def size(self) -> int:
        return 1 + sum(len(sequence) - 1 for sequence in encoded(self.codes)) + self.escaped

    def build(self, network: Network, start: int) -> int:
        end = network.add()
        nodes: dict[tuple[Range, ...], int] = {(): end}

        def node(rest: tuple[Range, ...]) -> int:
            if rest not in nodes:
                nodes[rest] = network.add()
                network.edges[nodes[rest]].append((*rest[0], node(rest[1:])))
            return nodes[rest]

        escapes = [code for code in ESCAPES if self.escaped and any(a <= code <= b for a, b in self.codes)]
        if escapes:
            backslash = network.step(start, ord("\\"), ord("\\"))
            network.edges[backslash] += [(ord(ESCAPES[code]), ord(ESCAPES[code]), end) for code in escapes]
        codes = without(self.codes, MUST_ESCAPE) if self.escaped else self.codes
        network.edges[start] += [(*head, node(tuple(rest))) for head, *rest in encoded(codes)]
        return end


@dataclass(frozen=True, slots=True)
class Anchor(Plain):
    kind: int
    size = 1

    def build(self, network: Network, start: int) -> int:
        network.has_anchors = True
        return network.step(start, self.kind, self.kind)


@dataclass(frozen=True, slots=True)
class Compiled:
    """The texts of an automaton, which has no counters; `most`: characters of the text, counted beside its states."""

    automaton: PatternAutomaton
    most: int | None = None

    @property
    def size(self) -> int:
        return len(self.automaton.accepting)

    @property
    def has_counter(self) -> bool:
        return self.most is not None or bool(self.automaton.bounds)

    def build(self, network: Network, start: int) -> int:
        own = self.automaton
        outer, first_loop = network.current, len(network.bounds)
        network.bounds += [*own.bounds, *([] if self.most is None else [self.most])]
        states = []
        for loop in own.loop.tolist():
            inner = outer if self.most is None else first_loop
            network.current = first_loop + loop if loop >= 0 else inner
            states.append(network.add())
        network.current = outer
        end = network.add()
        is_rest = np.arange(BYTES) >> 6 == 0b10
        for state, row in zip(states, own.next_state, strict=True):
            changes = np.flatnonzero(np.diff(row)) + 1
            for first, stop in zip((0, *changes.tolist()), (*changes.tolist(), BYTES), strict=True):
                if (target := int(row[first])) >= 0:
                    network.edges[state].append((first, stop - 1, states[target]))
        begins = own.accepting | (own.next_state[:, ~is_rest] >= 0).any(axis=1)  # no character is begun there
        network.counted |= {states[at] for at in np.flatnonzero(begins if self.most is not None else own.counts)}
        if self.most is not None:  # the first state is no arrival
            entry = network.add()
            network.edges[entry] = list(network.edges[states[0]])
            network.loop[entry] = first_loop
            network.empty[entry] += [end] * bool(own.accepting[0])
            network.empty[start].append(entry)
        else:
            network.empty[start].append(states[0])
        for at in np.flatnonzero(own.accepting):
            network.empty[states[at]].append(end)
        return end


@dataclass(frozen=True, slots=True)
class Parts:
    """A part of parts."""

    parts: tuple[FormPart, ...]
    size: int = field(init=False)
    has_counter: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + sum(part.size for part in self.parts))
        object.__setattr__(self, "has_counter", any(part.has_counter for part in self.parts))


@dataclass(frozen=True, slots=True)
class JoinedParts(Parts):
    def build(self, network: Network, start: int) -> int:
        for part in self.parts:
            start = part.build(network, start)
        return start


@dataclass(frozen=True, slots=True)
class Alternatives(Parts):
    def build(self, network: Network, start: int) -> int:
        end = network.add()
        for part in self.parts:
            network.empty[part.build(network, start)].append(end)
        return end


@dataclass(frozen=True, slots=True)
class RepeatedPart:
    """A part, `least` to `most` times (None: without a limit), each time with a state of its own."""

    part: FormPart
    least: int = 0
    most: int | None = None

    @property
    def size(self) -> int:
        return 1 + self.part.size * max(1, self.most or self.least)

    @property
    def has_counter(self) -> bool:
        return self.part.has_counter

    def build(self, network: Network, start: int) -> int:
        for _ in range(self.least):
            start = self.part.build(network, start)
        if self.most is None:
            again = network.add()
            network.empty[start].append(again)
            network.empty[self.part.build(network, again)].append(again)
            return again
        end = network.add()
        for _ in range(self.most - self.least):
            network.empty[start].append(end)
            start = self.part.build(network, start)
        network.empty[start].append(end)
        return end


@dataclass(frozen=True, slots=True)
class Looped:
    """A part, once or more often, with `mark` and `gap` between; `most`: of the marks, which a counter counts. Without
    a limit there is no counter."""

    part: FormPart
    mark: FormPart
    gap: FormPart
    most: int | None = None

    @property
    def size(self) -> int:
        return 1 + self.part.size + self.mark.size + self.gap.size

    @property
    def has_counter(self) -> bool:
        return self.most is not None or self.part.has_counter

    def build(self, network: Network, start: int) -> int:
        outer = network.current
        if self.most is not None:
            network.current = len(network.bounds)
            network.bounds.append(self.most)
        again = network.add()
        network.empty[start].append(again)
        end = self.part.build(network, again)
        marked = self.mark.build(network, end)
        if self.most is not None:
            network.counted.add(marked)
        network.empty[self.gap.build(network, marked)].append(again)
        network.current = outer
        return end


@dataclass(frozen=True, slots=True)
class Listed(Parts):
    """`least` to `most` of the parts, in their order, with `separator` between them; those of `needed` always."""

    separator: FormPart
    needed: frozenset[int]
    least: int = 0
    most: int | None = None

    def build(self, network: Network, start: int) -> int:
        most = self.most if self.most is not None and self.most < len(self.parts) else None
        highest = max(self.least, 1) if most is None else most  # more parts than this count as this many
        states = {0: start}  # by the number of parts before
        for at, part in enumerate(self.parts):
            before: dict[int, int] = {}  # the state before the part, by the number with it
            for count, state in states.items():
                after = min(count + 1, highest) if most is None else count + 1
                if after > highest:
                    continue
                if after not in before:
                    before[after] = network.add()
                network.empty[self.separator.build(network, state) if count else state].append(before[after])
            skipped = {} if at in self.needed else states
            states = {count: network.add() for count in sorted({*before, *skipped})}
            for count, state in skipped.items():
                network.empty[state].append(states[count])
            for count, state in before.items():
                network.empty[part.build(network, state)].append(states[count])
        end = network.add()
        for count, state in states.items():
            if count >= self.least:
                network.empty[state].append(end)
        return end


NOTHING = JoinedParts(())


@lru_cache(10_000)
def encoded(codes: tuple[Range, ...]) -> list[tuple[Range, ...]]:
    """The characters in UTF-8: sequences of ranges of bytes."""
    return [each for first, last in without(codes, (SURROGATES,)) for each in _encoded(first, last)]


def _encoded(first: int, last: int) -> Iterator[tuple[Range, ...]]:
    split = next((limit for limit in (0x7F, 0x7FF, 0xFFFF) if first <= limit < last), None)
    for bits in (6, 12, 18) if split is None and last > 0x7F else ():  # of the bytes after the first ones
        rest = (1 << bits) - 1
        if split is None and first | rest != last | rest:
            if first & rest:
                split = first | rest
            elif last & rest != rest:
                split = (last & ~rest) - 1
    if split is not None:
        yield from _encoded(first, split)
        yield from _encoded(split + 1, last)
    else:
        yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))


def without(codes: Iterable[Range], others: Iterable[Range]) -> tuple[Range, ...]:
    """The codes that are not among the others, ascending."""
    found = sorted(codes)
    for low, high in others:
        parts = [part for a, b in found for part in ((a, min(b, low - 1)), (max(a, high + 1), b))]
        found = sorted({(a, b) for a, b in parts if a <= b})
    return tuple(found)


def either(ways: Sequence[FormPart]) -> FormPart:
    """Any of these parts."""
    return ways[0] if len(ways) == 1 else Alternatives(tuple(ways))


def times(part: FormPart, least: int, most: int | None) -> FormPart:
    """A part without counters, `least` to `most` times; a counter counts a large `most`."""
    if most is None or most * part.size <= UNROLLED:
        return RepeatedPart(part, least, most)
    return JoinedParts((RepeatedPart(part, least, least), Looped(NOTHING, part, NOTHING, most - least)))


def listed(part: FormPart, mark: FormPart, gap: FormPart, least: int, most: int | None) -> FormPart:
    """Parts with `mark` and `gap` between them. A counter counts a large `most`; beside counters in the part itself it
    is lowered to what states can count."""
    if most == 0:
        return NOTHING
    if not least:
        return RepeatedPart(listed(part, mark, gap, 1, most), 0, 1)
    before, size = JoinedParts((part, mark, gap)), part.size + mark.size + gap.size
    if most is not None and part.has_counter:
        most = max(least, min(most, UNROLLED_COUNTERS // size))
    if most is not None and (part.has_counter or most * size <= UNROLLED):
        return JoinedParts((part, RepeatedPart(JoinedParts((mark, gap, part)), least - 1, most - 1)))
    loop = Looped(part, mark, gap, None if most is None else most - least)
    return JoinedParts((RepeatedPart(before, least - 1, least - 1), loop))


def automaton_of(part: FormPart) -> PatternAutomaton:
    """The automaton of a part's texts. Raises: BadInput if it is too large, or has no texts."""
    if part.size > MAX_NETWORK:
        raise TooLarge(f"the form is too large: it may have {MAX_STATES} states", "pattern")
    network = Network()
    start = network.add()
    end = part.build(network, start)
    ends = {end}
    if network.has_anchors:
        network, start, ends = _without_anchors(network, start, end)
    found = useful(_Sets(network, ends).automaton(start))
    if found is None:
        raise BadInput("no text matches the pattern", "pattern")
    if len(found.accepting) > MAX_STATES:
        found = merged(found)
    if (count := len(found.accepting)) > MAX_STATES:
        raise TooLarge(f"the form has {count} states; it may have {MAX_STATES}", "pattern")
    return found


def _after_anchor(anchor: int, before: int, wanted: int) -> list[tuple[int, int]]:
    """The `before` and `wanted` of the state after an anchor; empty if the anchor does not hold."""
    if anchor in {BEGIN, BEGIN_LINE}:
        return [(before, wanted)] if before in {BEGIN, anchor} else []
    return [(before, END if END in {anchor, wanted} else END_LINE)]


def _without_anchors(network: Network, start: int, end: int) -> tuple[Network, int, set[int]]:
    """The network's states, each with what is before it and what anchors want after it. It has no counters."""
    found, ends = Network(), set[int]()
    numbers: dict[tuple[int, int, int], int] = {}
    waiting: list[tuple[int, int, int]] = []

    def number(state: int, before: int, wanted: int) -> int:
        """`before`: BEGIN, BEGIN_LINE, or 0 within a line; `wanted`: END, END_LINE, or 0 for anything."""
        key = state, before, wanted
        if key not in numbers:
            numbers[key] = found.add()
            waiting.append(key)
        return numbers[key]

    first = number(start, BEGIN, 0)
    for key in waiting:
        state, before, wanted = key
        own = numbers[key]
        if state == end:
            ends.add(own)
        found.empty[own] += [number(target, before, wanted) for target in network.empty[state]]
        for low, high, target in network.edges[state]:
            if low >= BYTES:
                found.empty[own] += [number(target, *after) for after in _after_anchor(low, before, wanted)]
            elif wanted != END:
                others = ((low, min(high, NEWLINE - 1)), (max(low, NEWLINE + 1), high))
                if low <= NEWLINE <= high:
                    found.edges[own].append((NEWLINE, NEWLINE, number(target, BEGIN_LINE, 0)))
                found.edges[own] += [(a, b, number(target, 0, 0)) for a, b in others if a <= b and not wanted]
    return found, first, ends


class _Sets:
    """Sets of a network's states, of which each becomes a state."""

    def __init__(self, network: Network, ends: set[int]) -> None:
        self._network, self._ends = network, ends
        self._closures: dict[int, frozenset[int]] = {}
        self._numbers: dict[frozenset[int], int] = {}
        self._after: dict[frozenset[int], int] = {}  # the number of the set after any of these states
        self._sets: list[frozenset[int]] = []
        self._loops: dict[int, int] = {}  # loops that one set has several of are one loop: by loop, a lower one

    def automaton(self, start: int) -> PatternAutomaton:
        self._number(self._closure(start))
        rows: list[list[Edge]] = []
        budget = current_budget()
        for states in self._sets:  # to which _row adds
            rows.append(self._row(states))
            budget.spend(steps=len(states))
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
        """The states after no byte that matter: those with steps, and the ends."""
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
