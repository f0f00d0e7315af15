"""Lists with a largest number of items, whose items have a counter already, such as strings with a `maxLength`.

An automaton has one counter at a time. Either it counts characters, and each item has states of its own, which may
lower the number of items. Or it counts items, and each character has states of its own, which may shorten the strings.
"""

from bisect import bisect_right
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from shared.patterns.anchors import EDGE
from shared.patterns.byte_automaton import product
from shared.patterns.compile_budget import current_budget
from shared.patterns.json_strings import CHARACTER
from shared.patterns.part_automaton import automaton_of, texts_of
from shared.patterns.parts import Compiled, FormPart, JoinedParts, Looped, Parts, RepeatedPart, has_counter, inner_parts

MIN_STATES = 1_000  # that a list may take, also if the budget has fewer left
ENOUGH_ITEMS, ENOUGH_CHARACTERS = 50, 20  # strings are cut if fewer items would fit, but not below these characters
CHARACTER_STATES = 10  # an estimate, for one JSON character


class FittedItem(NamedTuple):
    """An item of a list, and how many there may be. `length`: of its strings, if shortened; else None."""

    item: FormPart
    most: int | None
    length: int | None = None


class _NotCutError(Exception):
    """One of the counters counts no characters, or no text is as short as it has to be."""


def fitted(item: FormPart, least: int, most: int | None) -> FittedItem:
    """Lower the number of items, or shorten their strings, so that the list needs about the states that the budget has
    left, of which it takes them. The number stays `least` or more."""
    if most is None or not has_counter(item):
        return FittedItem(item, most)
    budget, found = current_budget(), texts_of(item, EDGE)
    item_states, states = len(found.accepting) if found is not None else 1, max(budget.list_states, MIN_STATES)
    fitting, uncut_states = max(1, least, min(most, states // item_states)), _states(item, states)
    lengths = range(1, states // CHARACTER_STATES)
    length = bisect_right(lengths, states // max(1, least) - item_states, key=lambda each: _states(item, each))
    cut_states = _states(item, length)
    if cut_states == uncut_states:
        is_better = fitting < most or item_states + uncut_states < item_states * fitting
    else:
        is_better = fitting < min(most, ENOUGH_ITEMS) and length >= ENOUGH_CHARACTERS
    if is_better and budget.may_cut:
        with suppress(_NotCutError):
            cut = _cut(item, length)
            budget.list_states -= max(1, least) * (item_states + cut_states)
            return FittedItem(cut, most, length if cut_states < uncut_states else None)
    budget.list_states -= item_states * fitting
    return FittedItem(item, fitting)


def _states(part: FormPart, length: int) -> int:
    """About the states that the strings with a counter need without it, with up to `length` characters each."""
    match part:
        case Looped(JoinedParts(()), most=int(most)):
            return CHARACTER_STATES * min(most, length)
        case Compiled(automaton, int(most)):
            return len(automaton.accepting) * min(most, length)
    times = max(1, part.most or part.least) if isinstance(part, RepeatedPart) else 1
    return times * sum(_states(each, length) for each in inner_parts(part))


def _cut(part: FormPart, length: int) -> FormPart:
    """The part, with its counted strings shortened to `length` characters, which have states in place of a counter.
    Raises: _NotCutError."""
    if not has_counter(part):
        return part
    match part:
        case Looped(JoinedParts(()), character, JoinedParts(()), int(most)):
            return RepeatedPart(character, 0, min(most, length))
        case Compiled(automaton, int(most)):
            short = product(automaton, automaton_of(RepeatedPart(CHARACTER, 0, min(most, length))))
            if short is not None:
                return Compiled(short)
        case RepeatedPart() | Looped(most=None):
            return replace(part, part=_cut(part.part, length))
        case Parts():
            return replace(part, parts=tuple(_cut(each, length) for each in part.parts))
    raise _NotCutError
