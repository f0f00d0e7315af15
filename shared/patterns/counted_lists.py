"""Lists with a largest number of items, whose items have counters themselves, as strings with a largest length have.

An automaton has one counter at a time. So either each item has states of its own, or characters have, and a counter
counts the items. The first way has fewer items, the second one shorter strings.
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

MIN_STATES = 1_000  # of a list, if the budget has fewer
ENOUGH_ITEMS, ENOUGH_CHARACTERS = 50, 20  # strings are cut for fewer items, but not below these characters
CHARACTER_STATES = 10


class Fitted(NamedTuple):
    """An item of a list, and how many there may be. `length`: of its strings, if it is lower than they may have."""

    item: FormPart
    most: int | None
    length: int | None = None


class _NotCutError(Exception):
    """A counter does not count characters, or no text is as short as it has to be."""


def fitted(item: FormPart, least: int, most: int | None) -> Fitted:
    """A list of at least `least` of the items, with as many states as the budget has left."""
    if most is None or not has_counter(item):
        return Fitted(item, most)
    budget, found = current_budget(), texts_of(item, EDGE)
    own, states = len(found.accepting) if found is not None else 1, max(budget.list_states, MIN_STATES)
    fitting, whole = max(1, least, min(most, states // own)), _states(item, states)
    lengths = range(1, states // CHARACTER_STATES)
    length = bisect_right(lengths, states // max(1, least) - own, key=lambda each: _states(item, each))
    of_strings = _states(item, length)
    if of_strings == whole:
        is_better = fitting < most or own + whole < own * fitting
    else:
        is_better = fitting < min(most, ENOUGH_ITEMS) and length >= ENOUGH_CHARACTERS
    if is_better and budget.may_cut:
        with suppress(_NotCutError):
            cut = _cut(item, length)
            budget.list_states -= max(1, least) * (own + of_strings)
            return Fitted(cut, most, length if of_strings < whole else None)
    budget.list_states -= own * fitting
    return Fitted(item, fitting)


def _states(part: FormPart, length: int) -> int:
    """Of the strings with a counter, if states count up to `length` characters of each."""
    match part:
        case Looped(JoinedParts(()), most=int(most)):
            return CHARACTER_STATES * min(most, length)
        case Compiled(automaton, int(most)):
            return len(automaton.accepting) * min(most, length)
    times = max(1, part.most or part.least) if isinstance(part, RepeatedPart) else 1
    return times * sum(_states(each, length) for each in inner_parts(part))


def _cut(part: FormPart, length: int) -> FormPart:
    """The part, with states for the characters of its strings in place of counters. Raises: _NotCutError."""
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
