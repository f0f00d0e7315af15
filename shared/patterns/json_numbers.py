"""JSON's numbers within bounds, as parts of texts."""

import math
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from shared.errors import BadInput
from shared.patterns.byte_automaton import BYTES, PatternAutomaton, merged, product
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import NOTHING, Characters, Compiled, FormPart, JoinedParts, Literal, RepeatedPart, either
from shared.patterns.regex import read_regex
from shared.patterns.schema_keywords import NoValue

DIGITS = 15  # of a whole number, so that every parser keeps its value; at most as many follow the point
LARGEST = 10**DIGITS - 1
HUGE = 10**115  # above each number with DIGITS digits and an exponent of two digits
BOUNDS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}  # -1: lower bounds
MAX_MULTIPLES = 1_000
MAX_REMAINDERS, MAX_MERGED = 1_000, 100  # of a step, before and after those with the same continuations are merged
ANY_INTEGER = r"-?(?:0|[1-9][0-9]{0,14})"
ANY_NUMBER = r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?"


def _decimal(schema: Mapping[str, Any], name: str, field: str) -> Decimal | None:
    """A keyword that is a number; None if it is absent or null. Raises: BadInput if it is another value."""
    value = schema.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):  # an integer may exceed all floats
        raise BadInput(f"{name} must be a number, got {value!r}", field)
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def number(schema: Mapping[str, Any], field: str, decimals: int = DIGITS) -> FormPart:
    """A number with at most DIGITS digits before the point, and at most this many decimals: fewer, if a bound has many
    digits before the point; with `multipleOf`, as many as the step has. Raises: BadInput naming the field."""
    bounds = {name: bound for name in BOUNDS if (bound := _decimal(schema, name, field)) is not None}
    step = _decimal(schema, "multipleOf", field)
    if decimals and step is None and all(bound * BOUNDS[name] >= HUGE for name, bound in bounds.items()):
        return read_regex(ANY_NUMBER)
    if step is not None and step <= 0:
        raise BadInput(f"multipleOf must be above 0, got {schema['multipleOf']!r}", field)
    least = max([Decimal(-LARGEST), *(bound for name, bound in bounds.items() if BOUNDS[name] < 0)])
    most = min([Decimal(LARGEST), *(bound for name, bound in bounds.items() if BOUNDS[name] > 0)])
    in_range = [int(abs(bound)) for bound in bounds.values() if abs(bound) <= LARGEST]
    decimals = max(min(decimals, DIGITS - len(str(max(in_range, default=0)))), 0)
    if step is not None:
        if not decimals:  # the least whole multiple: of 2.5, 5
            step = Decimal(step.as_integer_ratio()[0])
        decimals = max(-int(step.normalize().as_tuple().exponent), 0)
    unit = 10**decimals
    first, last = math.ceil(least * unit), math.floor(most * unit)
    first += Decimal(first) / unit == bounds.get("exclusiveMinimum")
    last -= Decimal(last) / unit == bounds.get("exclusiveMaximum")
    if least > most or first > last:
        wanted = " and ".join(f"{name} {schema[name]}" for name in bounds)
        raise NoValue(f"no number of at most {DIGITS} digits has {wanted}", field)
    if step is not None and step != 1:
        return _multiples(first, last, step, decimals, field)
    if (first, last) == (-LARGEST, LARGEST):
        return read_regex(ANY_INTEGER)
    return _between(first, last, decimals)


def _multiples(first: int, last: int, step: Decimal, decimals: int, field: str) -> FormPart:
    """The multiples from `first` to `last`, in units of the last decimal, with at most DIGITS digits. Of a step with
    many remainders: the first MAX_MULTIPLES from `first`, or from 0 if there is no lower bound and 0 is in the range.
    All are exact; arithmetic of floating point, by which 19.99 is no multiple of 0.01, refuses some fractions."""
    step_in_units = int(step * 10**decimals)
    low, high = max(first, -LARGEST), min(last, LARGEST)
    if low <= high and step_in_units * (decimals + 1) <= MAX_REMAINDERS:
        remainders = _remainders(step_in_units, decimals)
        if len(remainders.accepting) <= MAX_MERGED:
            in_range = automaton_of(_between(low, high, decimals))
            if (multiples := product(in_range, remainders)) is not None:
                return Compiled(merged(multiples))
    is_open = first <= -LARGEST * 10**decimals and last >= 0  # no lower bound
    low = 0 if is_open else -(-first // step_in_units) * step_in_units
    found = [_written(each, decimals) for each in range(low, last + 1, step_in_units)[:MAX_MULTIPLES]]
    # Beyond DIGITS digits a parser may round to a number that is no multiple
    found = [each for each in found if not decimals or (float(each) / float(step)).is_integer()]
    if not found:
        raise NoValue(f"no multiple of {step} is within the bounds", field)
    return either([Literal(each) for each in found])


@lru_cache(64)
def _remainders(step: int, decimals: int) -> PatternAutomaton:
    """The multiples of a step, in units of the last decimal, among texts that are numbers: by the digits after the
    point, none yet or one more than their number, a state for each remainder of the digits so far."""
    rest, phases = np.arange(step), decimals + 2
    next_state = np.full((phases, step, BYTES), -1, np.int32)
    next_state[0, :, ord("-")], next_state[0, :, ord(".")] = rest, step + rest
    for phase, after in ((0, 0), *((each, each + 1) for each in range(1, phases - 1))):
        for digit in range(10):
            next_state[phase, :, ord("0") + digit] = after * step + (10 * rest + digit) % step
    missing = [10**decimals, *(10**each for each in range(decimals, -1, -1))]
    accepting = np.array([rest * (scale % step) % step == 0 for scale in missing])
    return merged(PatternAutomaton.plain(next_state.reshape(-1, BYTES), accepting.ravel()))


def _written(value: int, decimals: int) -> str:
    whole, rest = divmod(abs(value), 10**decimals)
    fraction = f"{rest:0{decimals}}".rstrip("0") if decimals else ""
    return f"{'-' * (value < 0)}{whole}{'.' * bool(fraction)}{fraction}"


def _between(first: int, last: int, decimals: int) -> FormPart:
    """The numbers from `first` to `last`, in units of the last decimal, without -0."""
    ways: list[FormPart] = []
    if first < 0:
        ways.append(JoinedParts((Literal("-"), _without_sign(max(-last, 1), -first, decimals))))
    if last >= 0:
        ways.append(_without_sign(max(first, 0), last, decimals))
    return either(ways)


@lru_cache(256)
def _without_sign(first: int, last: int, decimals: int) -> FormPart:
    """The numbers from `first` to `last`, both at least 0, in units of the last decimal."""
    ways = []
    for width in range(decimals + 1, decimals + DIGITS + 1):
        low, high = max(first, 10 ** (width - 1) if width > decimals + 1 else 0), min(last, 10**width - 1)
        if low <= high:
            ways.append(_rest(f"{low:0{width}}", f"{high:0{width}}", decimals))
    return Compiled(merged(automaton_of(either(ways))))


def _rest(low: str, high: str, decimals: int) -> FormPart:
    """The rest of a number: digits from `low` to `high`, of which the last `decimals` follow the point. Decimals that
    are left out count as 0."""
    if not low:
        return NOTHING
    ways: dict[tuple[str, str], list[str]] = {}  # by the bounds of the other digits, the first ones: neighbours
    for digit in map(str, range(int(low[0]), int(high[0]) + 1)):
        bounds = (low if digit == low[0] else "0" * len(low))[1:], (high if digit == high[0] else "9" * len(low))[1:]
        ways.setdefault(bounds, []).append(digit)
    parts = [
        JoinedParts((Characters(((ord(digits[0]), ord(digits[-1])),)), _rest(*bounds, decimals)))
        for bounds, digits in ways.items()
    ]
    found = either(parts) if len(low) != decimals else JoinedParts((Literal("."), either(parts)))
    return RepeatedPart(found, 0, 1) if len(low) <= decimals and not low.strip("0") else found
