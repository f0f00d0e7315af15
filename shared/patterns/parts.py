"""The parts that texts are made of. Each adds its states to a network; `part_automaton.py` makes an automaton of it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from shared.patterns.byte_automaton import BYTES, PatternAutomaton
from shared.patterns.characters import ESCAPES, MUST_ESCAPE, Range, encoded, without
from shared.patterns.network import Network

UNROLLED = 512  # states of a bounded repetition, up to which each count has states of its own


class FormPart(Protocol):
    """A part of a text."""

    @property
    def size(self) -> int:
        """About the number of its states."""

    def build(self, network: Network, start: int) -> int:
        """Add the part after a state. Returns: the state after the part."""


@dataclass(frozen=True, slots=True)
class Literal(FormPart):
    text: str

    @property
    def size(self) -> int:
        return len(self.text)

    def build(self, network: Network, start: int) -> int:
        for byte in self.text.encode():
            start = network.step(start, byte, byte)
        return start


@dataclass(frozen=True, slots=True)
class Characters(FormPart):
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
class Compiled:
    """The texts of an automaton, which has no counters; `most`: characters of the text, counted beside its states."""

    automaton: PatternAutomaton
    most: int | None = None

    @property
    def size(self) -> int:
        return len(self.automaton.accepting)

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
class MergedCharacters(Compiled):
    """One character of many ranges."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A part of parts."""

    parts: tuple[FormPart, ...]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + sum(part.size for part in self.parts))


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


_Before = tuple[int, frozenset[tuple[int, bool]]]


@dataclass(frozen=True, slots=True)
class Listed(Parts):
    """`least` to `most` of the parts, in their order, with `separator` between them; those of `needed` always, and the
    first one of each pair of `pairs` only beside the second one."""

    separator: FormPart
    needed: frozenset[int]
    least: int = 0
    most: int | None = None
    pairs: tuple[tuple[int, int], ...] = ()

    def build(self, network: Network, start: int) -> int:
        most = self.most if self.most is not None and self.most < len(self.parts) else None
        highest = max(self.least, 1) if most is None else most  # more parts than this count as this many
        # By the number of parts before, and the later parts that these demand (True) or exclude
        states: dict[_Before, int] = {(0, frozenset()): start}
        for at, part in enumerate(self.parts):
            demanded = {(other, True) for one, other in self.pairs if one == at < other}
            excluded = {(one, False) for one, other in self.pairs if other == at < one}
            begins, after = defaultdict[_Before, int](network.add), defaultdict[_Before, int](network.add)
            for (count, rules), state in states.items():
                rest = rules - {(at, True), (at, False)}
                if (at, False) not in rules and (most is None or count < most):
                    begin = begins[min(count + 1, highest), rest | demanded]
                    network.empty[self.separator.build(network, state) if count else state].append(begin)
                if at not in self.needed and (at, True) not in rules:
                    network.empty[state].append(after[count, rest | excluded])
            for key, begin in begins.items():  # of the states before the part, each by what holds after it
                network.empty[part.build(network, begin)].append(after[key])
            states = after
        end = network.add()
        for (count, _), state in states.items():
            if count >= self.least:
                network.empty[state].append(end)
        return end


NOTHING = JoinedParts(())


def either(ways: Sequence[FormPart]) -> FormPart:
    """Any of these parts."""
    return ways[0] if len(ways) == 1 else Alternatives(tuple(ways))


def any_of(ways: Iterable[FormPart | None]) -> FormPart | None:
    """Any of these that have texts; None: no text."""
    possible = [way for way in ways if way is not None]
    return either(possible) if possible else None


def inner_parts(part: FormPart) -> Sequence[FormPart]:
    """The parts of a sequence, of alternatives or of a repetition."""
    return part.parts if isinstance(part, Parts) else [part.part] if isinstance(part, RepeatedPart | Looped) else []


def has_counter(part: FormPart) -> bool:
    """Whether a counter is in it."""
    match part:
        case Compiled(automaton, most):
            return most is not None or bool(automaton.bounds)
        case Looped(most=int()):
            return True
    return any(map(has_counter, inner_parts(part)))


def listed(part: FormPart, mark: FormPart, gap: FormPart, least: int, most: int | None) -> FormPart:
    """Parts with `mark` and `gap` between them; `most` is at least 1. A counter counts a large one, if the part itself
    has none."""
    if not least:
        return RepeatedPart(listed(part, mark, gap, 1, most), 0, 1)
    before, size = JoinedParts((part, mark, gap)), part.size + mark.size + gap.size
    if most is not None and (most * size <= UNROLLED or has_counter(part)):
        return JoinedParts((part, RepeatedPart(JoinedParts((mark, gap, part)), least - 1, most - 1)))
    loop = Looped(part, mark, gap, None if most is None else most - least)
    return JoinedParts((RepeatedPart(before, least - 1, least - 1), loop))
