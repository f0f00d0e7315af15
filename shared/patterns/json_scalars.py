"""Patterns of JSON's strings, numbers and constants."""

import json
import math
from collections.abc import Mapping
from typing import Any

from shared.errors import BadInput
from shared.patterns.automaton import compile_pattern, without_anchors

CHARACTER = r'(?:[^"\\\x00-\x1F\x7F]|\\["\\/bfnrt])'
DIGITS = 15  # of a number before or after its point, so that every parser keeps its value
YEAR_MONTH_DAY = (
    "[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
FORMATS = {  # of others any string is accepted, as JSON Schema does by default
    "date": YEAR_MONTH_DAY,
    "time": CLOCK,
    "date-time": f"{YEAR_MONTH_DAY}T{CLOCK}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
}
ASCII_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}  # which are Unicode's in a pattern
FRACTION = rf"(?:\.[0-9]{{1,{DIGITS}}})?"
LARGEST = 10**DIGITS - 1
SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~")


def literal(text: str) -> str:
    """The pattern of this text alone."""
    return "".join(f"\\{character}" if character in SPECIAL else character for character in text)


def constant(value: Any) -> str:
    """The pattern of one JSON value, as `json.dumps` writes it."""
    return literal(json.dumps(value, ensure_ascii=False, allow_nan=False))


def string(schema: Mapping[str, Any], field: str) -> str:
    """A JSON string. Raises: BadInput naming the field."""
    least, most = count(schema, "minLength", field) or 0, count(schema, "maxLength", field)
    if "pattern" in schema:
        if least or most is not None:
            raise BadInput("pattern beside minLength or maxLength is not supported", field)
        return f'"{_string_pattern(schema["pattern"], field)}"'
    if schema.get("format") in FORMATS and not least and most is None:
        return f'"{FORMATS[schema["format"]]}"'
    check_range(least, most, "minLength", field)
    return f'"{CHARACTER}{times(least, most)}"'


def integer(schema: Mapping[str, Any], field: str) -> str:
    """An integer within its bounds. Raises: BadInput naming the field."""
    low, high = _bounds(schema, field)
    first = -LARGEST if low is None else math.ceil(low)
    last = LARGEST if high is None else math.floor(high)
    first += first == schema.get("exclusiveMinimum")
    last -= last == schema.get("exclusiveMaximum")
    check_range(first, last, "minimum", field)
    return _between(first, last)


def number(schema: Mapping[str, Any], field: str) -> str:
    """A number within its bounds, which must be whole numbers. Raises: BadInput naming the field."""
    low, high = _bounds(schema, field)
    if low is None and high is None:
        return rf"-?(?:0|[1-9][0-9]{{0,{DIGITS - 1}}})(?:\.[0-9]{{1,{DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?"
    for name in ("exclusiveMinimum", "exclusiveMaximum"):
        if name in schema:
            raise BadInput(f"{name} of a number is not supported; of an integer it is", field)
    if any(bound is not None and bound != int(bound) for bound in (low, high)):
        raise BadInput("the bounds of a number must be whole numbers", field)
    first, last = -LARGEST if low is None else int(low), LARGEST if high is None else int(high)
    check_range(first, last, "minimum", field)
    ways = [f"{literal(str(end))}(?:\\.0)?" for end in {first, last}]
    if last > 0 and last > first:
        ways.append(f"{_between(max(first, 0), last - 1)}{FRACTION}")
    if first < 0 and last > first:
        ways.append(f"-{_between(max(-last, 0), -first - 1)}{FRACTION}")
    return f"(?:{'|'.join(ways)})"


def count(schema: Mapping[str, Any], name: str, field: str) -> int | None:
    """A keyword that is a number of things. Raises: BadInput if it is another value."""
    value = schema.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value != int(value) or value < 0:
        raise BadInput(f"{name} must be a whole number from 0 on, got {value!r}", field)
    return int(value)


def times(least: int, most: int | None) -> str:
    """The quantifier."""
    return "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"


def check_range(least: int, most: int | None, name: str, field: str) -> None:
    """Raises: BadInput if no value fits."""
    if most is not None and least > most:
        raise BadInput(f"{name} {least} is above the maximum {most}", field)


def _bounds(schema: Mapping[str, Any], field: str) -> tuple[float | None, float | None]:
    """The least and the largest number. Raises: BadInput if a bound is no number."""
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    for name in names:
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
            raise BadInput(f"{name} must be a number of at most {DIGITS} digits, got {value!r}", field)
    if "multipleOf" in schema and (schema["multipleOf"] != 1 or schema.get("type") != "integer"):
        raise BadInput("multipleOf is not supported", field)
    low = [schema[name] for name in names[:2] if name in schema]
    high = [schema[name] for name in names[2:] if name in schema]
    return max(low, default=None), min(high, default=None)


def _between(first: int, last: int) -> str:
    """The integers from `first` to `last`."""
    ways = []
    if first < 0:
        ways.append(f"-{_naturals(max(-last, 1), -first)}")
    if last >= 0:
        ways.append(_naturals(max(first, 0), last))
    return f"(?:{'|'.join(ways)})"


def _naturals(first: int, last: int) -> str:
    """The natural numbers from `first` to `last`, by their number of digits."""
    ways, low = [], first
    while low <= last:
        high = min(last, 10 ** len(str(low)) - 1)
        ways.append(_same_length(str(low), str(high)))
        low = high + 1
    return f"(?:{'|'.join(ways)})"


def _same_length(low: str, high: str) -> str:
    """Numbers of equal length: by their first digits, which are the lowest, the highest, or between."""
    if not low:
        return ""
    rest = len(low) - 1
    if low == "1" + "0" * rest and high == "9" * len(high):
        return f"[1-9][0-9]{{{rest}}}"
    if low == "0" * len(low) and high == "9" * len(high):
        return f"[0-9]{{{len(low)}}}"
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    ways = [low[0] + _same_length(low[1:], "9" * rest), high[0] + _same_length("0" * rest, high[1:])]
    if int(high[0]) - int(low[0]) > 1:
        ways.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}][0-9]{{{rest}}}")
    return f"(?:{'|'.join(ways)})"


def _string_pattern(pattern: Any, field: str) -> str:
    """A string's own pattern, as JSON Schema has it: without anchors, text may lie before and after it."""
    if not isinstance(pattern, str):
        raise BadInput(f"pattern must be a string, got {pattern!r}", field)
    inner = with_ascii_classes(without_anchors(pattern))
    try:
        automaton = compile_pattern(inner)
    except BadInput as error:
        raise BadInput(f"pattern {pattern!r}: {error.message}", field) from None
    forbidden = [*range(32), 127, ord('"'), ord("\\")]
    if (automaton.next_state[:, forbidden] >= 0).any():
        raise BadInput(
            f"pattern {pattern!r} matches quotes, backslashes or control characters, which a JSON string escapes; "
            'exclude them, such as by [^"\\\\\\x00-\\x1f\\x7f] in place of a dot',
            field,
        )
    before = "" if pattern.startswith("^") else f"{CHARACTER}*"
    after = "" if pattern != pattern.removesuffix("$") else f"{CHARACTER}*"
    return f"{before}(?:{inner}){after}"


def with_ascii_classes(pattern: str) -> str:
    r"""With \d and \w as JSON Schema means them: ASCII digits and letters."""
    found, in_class, at = [], False, 0
    while at < len(pattern):
        pair = pattern[at : at + 2]
        if pair[0] == "\\" and pair[1:] in ASCII_CLASSES:
            inside = ASCII_CLASSES[pair[1:]]
            found.append(inside if in_class else f"[{inside}]")
        else:
            pair = pair if pair[0] == "\\" else pair[0]
            in_class = (in_class or pair == "[") and pair != "]"
            found.append(pair)
        at += len(pair)
    return "".join(found)
