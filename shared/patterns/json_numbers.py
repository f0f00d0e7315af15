"""JSON's numbers within bounds, as parts of texts."""

import math
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from shared.arrays import Int32
from shared.errors import BadInput
from shared.patterns.byte_automaton import BYTES, PatternAutomaton, useful
from shared.patterns.compile_budget import current_budget
from shared.patterns.parts import Compiled, FormPart, JoinedParts, Literal, either
from shared.patterns.regex import read_regex
from shared.patterns.schema_keywords import NoValue

DIGITS = 15  # of a whole number, so that every parser keeps its value; at most as many follow the point
LARGEST = 10**DIGITS - 1
HUGE = 10**115  # above each number with DIGITS digits and an exponent of two digits
BOUNDS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}  # -1: lower bounds
MAX_MULTIPLES = 1_000
ANY_INTEGER = r"-?(?:0|[1-9][0-9]{0,14})"
ANY_NUMBER = r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?"

# The characters that may follow the beginning of a number: how many at most, and the lowest and the highest number that
# they may write, in units of the last decimal. Decimals that are left out count as 0
Rest = tuple[int, int, int]


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
    own = {name: _decimal(schema, name, field) or Decimal(0) for name in BOUNDS if name in schema}
    if decimals and "multipleOf" not in schema and all(bound * BOUNDS[name] >= HUGE for name, bound in own.items()):
        return read_regex(ANY_NUMBER)
    low, above, high, below, step = (_decimal(schema, name, field) for name in (*BOUNDS, "multipleOf"))
    if step is not None and step <= 0:
        raise BadInput(f"multipleOf must be above 0, got {schema['multipleOf']!r}", field)
    least = max([Decimal(-LARGEST), *(bound for bound in (low, above) if bound is not None)])
    most = min([Decimal(LARGEST), *(bound for bound in (high, below) if bound is not None)])
    in_range = [int(abs(bound)) for bound in (low, above, high, below) if bound is not None and abs(bound) <= LARGEST]
    decimals = max(min(decimals, DIGITS - len(str(max(in_range, default=0)))), 0)
    if step is not None:
        if not decimals:  # the least whole multiple: of 2.5, 5
            step = Decimal(step.as_integer_ratio()[0])
        decimals = max(-int(step.normalize().as_tuple().exponent), 0)
    unit = 10**decimals
    first, last = math.ceil(least * unit), math.floor(most * unit)
    first += above is not None and Decimal(first) / unit == above
    last -= below is not None and Decimal(last) / unit == below
    if least > most or first > last:
        bounds = " and ".join(f"{name} {schema[name]}" for name in BOUNDS if schema.get(name) is not None)
        raise NoValue(f"no number of at most {DIGITS} digits has {bounds}", field)
    if step is not None and step != 1:
        return _multiples(first, last, step, decimals, field)
    if (first, last) == (-LARGEST, LARGEST):
        return read_regex(ANY_INTEGER)
    return _between(first, last, decimals)


def _multiples(first: int, last: int, step: Decimal, decimals: int, field: str) -> FormPart:
    """The first MAX_MULTIPLES multiples from `first`, or from 0 if there is no lower bound and 0 is in the range, in
    units of the last decimal. Of fractions, only those that are multiples also by the arithmetic of floating point."""
    step_in_units = int(step * 10**decimals)
    is_open = first <= -LARGEST * 10**decimals and last >= 0  # no lower bound
    low = 0 if is_open else -(-first // step_in_units) * step_in_units
    found = [_written(each, decimals) for each in range(low, last + 1, step_in_units)[:MAX_MULTIPLES]]
    found = [each for each in found if not decimals or (float(each) / float(step)).is_integer()]
    if not found:
        raise NoValue(f"no multiple of {step} is within the bounds", field)
    return either([Literal(each) for each in found])


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
    """The numbers from `first` to `last`, both at least 0, in units of the last decimal.

    A state of the automaton is the set of what may follow: one `Rest` for each number of digits before the point.
    """
    point = decimals + 1  # characters that may follow the whole part
    start = []
    for digits in range(1, DIGITS + 1):
        low, high = 10 ** (digits + decimals - 1) if digits > 1 else 0, 10 ** (digits + decimals) - 1
        start.append((point + digits, max(low, first), min(high, last)))
    states = [tuple(rest for rest in start if rest[1] <= rest[2])]
    numbers, next_state = {states[0]: 0}, list[Int32]()
    for state in states:  # to which the loop appends
        row = np.full(BYTES, -1, np.int32)
        for character in "0123456789.":
            after = tuple(rest for each in state if (rest := _after(each, character, point)) is not None)
            if after not in numbers:
                numbers[after] = len(states)
                states.append(after)
            row[ord(character)] = numbers[after]
        next_state.append(row)
        current_budget().spend(6)
    # A number ends with its last digit, not with the point; the decimals left out, 0, must be within the bounds
    may_end = [any(decimals != left <= point and not low for left, low, _ in state) for state in states]
    found = useful(PatternAutomaton.plain(np.array(next_state), np.array(may_end)))
    assert found is not None, "each of the numbers is a text"
    return Compiled(found)


def _after(rest: Rest, character: str, point: int) -> Rest | None:
    """The rest after its first character; None if it does not begin so."""
    left, low, high = rest
    if not left or (left == point) != (character == "."):
        return None
    if character == ".":
        return left - 1, low, high
    size = 10 ** (left - 1 - (left > point))  # of the numbers, as many begin with each digit
    low, high = max(low - int(character) * size, 0), min(high - int(character) * size, size - 1)
    return (left - 1, low, high) if low <= high else None
