"""JSON's strings, numbers and constants as parts of texts."""

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from shared.errors import BadInput
from shared.patterns.automaton import compile_pattern, without_anchors
from shared.patterns.byte_automaton import PatternAutomaton, longest_text, product
from shared.patterns.characters import MUST_ESCAPE, Range, without
from shared.patterns.compile_budget import TooLarge
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import (
    NOTHING,
    Characters,
    Compiled,
    FormPart,
    JoinedParts,
    Literal,
    RepeatedPart,
    either,
    times,
)
from shared.patterns.regex import ALL, UnknownSyntaxError, joined_with_rest, read_regex, with_whole_characters

# The characters of a JSON string: no control characters but those with a short escape
CODES: tuple[Range, ...] = without(ALL, ((0, 7), (11, 11), (14, 31), (127, 127)))
CHARACTER = Characters(CODES, escaped=True)
PLAIN = RepeatedPart(Characters(without(ALL, MUST_ESCAPE)))  # without escapes
QUOTE = Literal('"')
DIGITS = 15  # of a whole number, so that every parser keeps its value; at most as many follow the point
YEAR_MONTH_DAY = (
    "(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
NAME = "[a-z0-9]{1,30}(?:-[a-z0-9]{1,30})?"
HOST = rf"{NAME}(?:\.{NAME}){{1,3}}"
URI = rf"https?://{HOST}(?:/[A-Za-z0-9._~-]{{1,60}}){{0,6}}"
EMAIL = rf"[A-Za-z0-9]{{1,30}}(?:[._+-][A-Za-z0-9]{{1,30}}){{0,2}}@{HOST}"
POINTER = "(?:/[A-Za-z0-9_-]{1,30}){0,6}"
FORMATS = {  # usual values of each; of others any string is accepted, as JSON Schema does by default
    "date": YEAR_MONTH_DAY,
    "time": CLOCK,
    "date-time": f"{YEAR_MONTH_DAY}T{CLOCK}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "duration": "P[1-9][0-9]{0,3}D",
    "email": EMAIL,
    "idn-email": EMAIL,
    "hostname": HOST,
    "idn-hostname": HOST,
    "uri": URI,
    "uri-reference": URI,
    "uri-template": URI,
    "iri": URI,
    "iri-reference": URI,
    "json-pointer": POINTER,
    "relative-json-pointer": f"[0-9]{POINTER}",
    "regex": "[A-Za-z0-9]{1,60}",
    "ipv6": "(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "ipv4": r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
}
LARGEST = 10**DIGITS - 1
HUGE = 10**115  # above each number with DIGITS digits and an exponent of two digits
BOUNDS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}  # the side of each
MAX_MULTIPLES = 1_000
LENGTHS = re.compile(r"\^\(\?=\.\{([0-9]{1,6}),([0-9]{1,6})\}(?:\\\.\?)?\$\)")  # a look-ahead that bounds the length
COUNTED = 2_000  # states of a pattern with its lengths, above which a counter counts them
ANY_INTEGER = r"-?(?:0|[1-9][0-9]{0,14})"
ANY_NUMBER = r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?"


class NoValue(BadInput):
    """No value keeps all rules of a schema."""


def constant(value: Any) -> FormPart:
    """One JSON value, as `json.dumps` writes it, or with each </ as <\\/, which is the same value."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return either([Literal(text), *([Literal(text.replace("</", "<\\/"))] if "</" in text else [])])


def string(schema: Mapping[str, Any], field: str) -> FormPart:
    """A JSON string. Raises: BadInput naming the field."""
    return JoinedParts((QUOTE, content(schema, field), QUOTE))


def content(schema: Mapping[str, Any], field: str) -> FormPart:
    """A JSON string without its quotes. `pattern` and `format` may also be tuples, all of which it matches. Raises:
    BadInput naming the field."""
    found: PatternAutomaton | None = None
    names, lengths = [], [limits(schema, "Length", field)]
    for name in ("pattern", "format"):
        values = schema.get(name, ())
        for value in values if isinstance(values, tuple) else [values]:
            if name == "format" and (not isinstance(value, str) or value not in FORMATS):
                continue
            if name == "pattern" and isinstance(value, str) and (ahead := LENGTHS.match(value)):
                own = searched(f"^(?=.*$){value[ahead.end() :]}", field)
                lengths.append((int(ahead[1]), int(ahead[2])))
            else:
                own = searched(value, field) if name == "pattern" else _format(value)
            names.append(f"{name} {value!r}")
            found = own if found is None else _both(found, own, names, field)
    least = max(shortest for shortest, _ in lengths)
    most = min((longest for _, longest in lengths if longest is not None), default=None)
    limits({"minLength": least, "maxLength": most}, "Length", field)
    if found is None:
        return times(CHARACTER, least, most)
    if most is not None and (longest := longest_text(found)) is not None and longest <= most:
        most = None
    is_small = most is None or most * len(found.accepting) <= COUNTED
    if least or (most is not None and is_small):
        names += [f"{name} {schema[name]!r}" for name in ("minLength", "maxLength") if name in schema]
        bounded = automaton_of(RepeatedPart(CHARACTER, least, most if is_small else None))
        found = _both(found, bounded, names, field)
    return Compiled(found, None if is_small else most)


@lru_cache(64)
def _format(name: str) -> PatternAutomaton:
    return automaton_of(read_regex(FORMATS[name]))


def _both(one: PatternAutomaton, other: PatternAutomaton, names: list[str], field: str) -> PatternAutomaton:
    found = product(one, other)
    if found is None:
        raise NoValue(f"no text is written that has {' and '.join(names)}", field)
    return found


def searched(pattern: Any, field: str) -> PatternAutomaton:
    """The strings, as JSON writes them, in which JSON Schema finds a pattern. Raises: BadInput naming the field."""
    if not isinstance(pattern, str):
        raise BadInput(f"pattern must be a string, got {pattern!r}", field)
    found = _searched(with_whole_characters(pattern))
    if isinstance(found, str):
        raise BadInput(f"pattern {pattern!r}: {found}", field)
    return found


@lru_cache(256)
def _searched(pattern: str) -> PatternAutomaton | str:
    """Returns: the automaton, or why it cannot be written."""
    try:
        return _read_searched(pattern) or "no text matches the pattern"
    except TooLarge:
        raise
    except BadInput as error:
        return error.message


def _read_searched(pattern: str) -> PatternAutomaton | None:
    any_text = RepeatedPart(CHARACTER)
    try:
        part = joined_with_rest(read_regex(pattern, CODES, escaped=True), any_text, any_text)
    except UnknownSyntaxError:
        before, after = ("" if pattern.startswith("^") else "(?s:.*)"), "" if pattern.endswith("$") else "(?s:.*)"
        whole = compile_pattern(f"{before}(?:{without_anchors(pattern)}){after}")
        return product(whole, automaton_of(PLAIN))  # without escapes
    return automaton_of(JoinedParts((any_text, part))) if part is not None else None


def integer(schema: Mapping[str, Any], field: str) -> FormPart:
    """An integer within its bounds. Raises: BadInput naming the field."""
    return _number(schema, field, decimals=0)


def number(schema: Mapping[str, Any], field: str) -> FormPart:
    """A number within its bounds. Raises: BadInput naming the field."""
    bounds = {name: _decimal(schema, name, field) or Decimal(0) for name in BOUNDS if name in schema}
    if "multipleOf" not in schema and all(bound * BOUNDS[name] >= HUGE for name, bound in bounds.items()):
        return read_regex(ANY_NUMBER)
    return _number(schema, field, decimals=DIGITS)


def _decimal(schema: Mapping[str, Any], name: str, field: str) -> Decimal | None:
    """A keyword that is a number. Raises: BadInput if it is another value."""
    value = schema.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{name} must be a number, got {value!r}", field)
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def _number(schema: Mapping[str, Any], field: str, *, decimals: int) -> FormPart:
    """A number with at most this many decimals, and DIGITS digits before them."""
    low, above, high, below, step = (
        _decimal(schema, name, field)
        for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
    )
    if step is not None and step <= 0:
        raise BadInput(f"multipleOf must be above 0, got {schema['multipleOf']!r}", field)
    least = max([Decimal(-LARGEST), *(bound for bound in (low, above) if bound is not None)])
    most = min([Decimal(LARGEST), *(bound for bound in (high, below) if bound is not None)])
    exact = [int(abs(bound)) for bound in (low, above, high, below) if bound is not None and abs(bound) <= LARGEST]
    decimals = max(min(decimals, DIGITS - len(str(max(exact, default=0)))), 0)
    if step is not None:
        if not decimals:  # an integer
            step = Decimal(step.as_integer_ratio()[0])
        decimals = _places(step)
    unit = 10**decimals
    first, last = math.ceil(least * unit), math.floor(most * unit)
    first += above is not None and Decimal(first) / unit == above
    last -= below is not None and Decimal(last) / unit == below
    if least > most or first > last:
        raise NoValue(f"no number of at most {DIGITS} digits is from {least} to {most}", field)
    if step is not None and step != 1:
        return _multiples(first, last, step, decimals, field)
    if (first, last) == (-LARGEST, LARGEST):
        return read_regex(ANY_INTEGER)
    return _between(first, last, decimals)


def _places(value: Decimal) -> int:
    """The decimals that a number needs."""
    return max(-int(value.normalize().as_tuple().exponent), 0)


def _multiples(first: int, last: int, step: Decimal, decimals: int, field: str) -> FormPart:
    """The first MAX_MULTIPLES multiples from `first`, or from 0 if there is no lower bound, in units of the last
    decimal. Of fractions, only those that are multiples also by the arithmetic of floating point."""
    units = int(step * 10**decimals)
    is_open = first <= -LARGEST * 10**decimals and last >= 0  # no lower bound
    low = 0 if is_open else -(-first // units) * units
    found = [_written(each, decimals) for each in range(low, last + 1, units)[:MAX_MULTIPLES]]
    found = [each for each in found if not decimals or (float(each) / float(step)).is_integer()]
    if not found:
        raise NoValue(f"no multiple of {step} is within the bounds", field)
    return either([Literal(each) for each in found])


def _written(value: int, decimals: int) -> str:
    whole, rest = divmod(abs(value), 10**decimals)
    fraction = f"{rest:0{decimals}}".rstrip("0") if decimals else ""
    return f"{'-' * (value < 0)}{whole}{'.' * bool(fraction)}{fraction}"


def count(schema: Mapping[str, Any], name: str, field: str) -> int | None:
    """A keyword that is a number of things. Raises: BadInput if it is another value."""
    value = schema.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value % 1 != 0 or value < 0:
        raise BadInput(f"{name} must be a whole number from 0 on, got {value!r}", field)
    return int(value)


def limits(schema: Mapping[str, Any], of: str, field: str) -> tuple[int, int | None]:
    """The keywords with `min` and `max` before `of`, such as Length. Raises: BadInput if no value fits."""
    least, most = count(schema, f"min{of}", field) or 0, count(schema, f"max{of}", field)
    if most is not None and least > most:
        raise NoValue(f"min{of} {least} is above the maximum {most}", field)
    return least, most


def _between(first: int, last: int, decimals: int) -> FormPart:
    """The numbers from `first` to `last`, in units of the last decimal."""
    ways: list[FormPart] = []
    if first < 0:
        ways += [JoinedParts((Literal("-"), way)) for way in _naturals(max(-last, 1), -first, decimals)]
    if last >= 0:
        ways += _naturals(max(first, 0), last, decimals)
    return either(ways)


def _naturals(first: int, last: int, decimals: int) -> list[FormPart]:
    """The numbers from `first` on, by their whole part: the lowest, the highest, or between."""
    unit = 10**decimals
    low, high = (f"{end % unit:0{decimals}}".rstrip("0") if decimals else "" for end in (first, last))
    lowest, highest = first // unit, last // unit
    if lowest == highest:
        return [JoinedParts((Literal(str(lowest)), _fraction(low, high, decimals)))]
    ways: list[FormPart] = []
    if low:
        ways.append(JoinedParts((Literal(str(lowest)), _fraction(low, None, decimals))))
        lowest += 1
    if high != "9" * decimals:
        ways.append(JoinedParts((Literal(str(highest)), _fraction("", high, decimals))))
        highest -= 1
    if lowest <= highest:
        ways.append(JoinedParts((_whole(lowest, highest), _fraction("", None, decimals))))
    return ways


def _fraction(low: str, high: str | None, decimals: int) -> FormPart:
    """The end of a number, after its whole part: the decimals from `low` to `high`; None: to 9999…"""
    if not decimals:
        return NOTHING
    point = JoinedParts((Literal("."), either(_digit_strings(low, high, 1, decimals))))
    return point if low else either([NOTHING, point])


def _digit_strings(low: str, high: str | None, least: int, most: int) -> list[FormPart]:
    """`least` to `most` digits, at least one, from `low` to `high` (None: 9999…) as decimals; digits left out are 0."""
    if not most:
        return []
    first, last = int(low[:1] or 0), 9 if high is None else int(high[:1] or 0)
    ways: list[FormPart] = []
    for digit in range(first, last + 1):
        lowest = low[1:] if digit == first else ""
        highest = high[1:] if high is not None and digit == last else None
        if lowest or highest is not None:  # the others share their continuation
            rest = _digit_strings(lowest, highest, least - 1, most - 1)
            may_end = not lowest and least <= 1
            ways.append(JoinedParts((Literal(str(digit)), either([*([NOTHING] if may_end else []), *rest]))))
    first += bool(low[1:])
    last -= high is not None
    if first <= last:
        ways.append(JoinedParts((_digits(first, last), RepeatedPart(_digits(0, 9), max(least - 1, 0), most - 1))))
    return ways


def _whole(first: int, last: int) -> FormPart:
    """The natural numbers from `first` to `last`, by their number of digits."""
    ways, low = list[FormPart](), first
    while low <= last:
        size = len(str(low))
        high = min(last, 10**size - 1)
        end = None if high == 10**size - 1 else str(high)
        ways += _digit_strings(str(low).rstrip("0"), end, size, size)
        low = high + 1
    return either(ways)


def _digits(first: int, last: int) -> FormPart:
    return Characters(((48 + first, 48 + last),))
