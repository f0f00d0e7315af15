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
ASCII_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}  # which are Unicode's in a pattern
FRACTION = rf"(?:\.[0-9]{{1,{DIGITS}}})?"
LARGEST = 10**DIGITS - 1
MAX_MULTIPLES = 1_000
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
    first, last, step = _range(schema, field)
    first += first == schema.get("exclusiveMinimum")
    last -= last == schema.get("exclusiveMaximum")
    check_range(first, last, "minimum", field)
    return _between(first, last) if step == 1 else _multiples(first, last, step, field)


def number(schema: Mapping[str, Any], field: str) -> str:
    """A number within the whole numbers within its bounds; a multiple is a whole number. Raises: BadInput naming the
    field."""
    first, last, step = _range(schema, field)
    if step != 1 or "multipleOf" in schema:
        return integer(schema, field)
    if (first, last) == (-LARGEST, LARGEST):
        return rf"-?(?:0|[1-9][0-9]{{0,{DIGITS - 1}}})(?:\.[0-9]{{1,{DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?"
    above, below = first == schema.get("exclusiveMinimum"), last == schema.get("exclusiveMaximum")
    check_range(first + (above and below), last, "minimum", field)
    ends = {end for end, is_excluded in ((first, above), (last, below)) if not is_excluded}
    ways = [f"{literal(str(end))}(?:\\.0)?" for end in ends]
    if last > 0 and last > first:
        ways += _from(max(first, 0), last - 1, "", is_excluded=above and first >= 0)
    if first < 0 and last > first:
        ways += _from(max(-last, 0), -first - 1, "-", is_excluded=below and last <= 0)
    return f"(?:{'|'.join(ways)})"


def _from(low: int, high: int, sign: str, *, is_excluded: bool) -> list[str]:
    """The numbers from `low` up to below `high` + 1; `is_excluded`: not `low` itself."""
    if not is_excluded:
        return [f"{sign}{_between(low, high)}{FRACTION}"]
    ways = [rf"{sign}{low}\.[0-9]{{0,{DIGITS - 1}}}[1-9]"]
    return [*ways, f"{sign}{_between(low + 1, high)}{FRACTION}"] if high > low else ways


def _multiples(first: int, last: int, step: int, field: str) -> str:
    """The first MAX_MULTIPLES multiples from `first`, or from 0 if there is no lower bound."""
    low = -(-(0 if first == -LARGEST else first) // step) * step
    found = range(low, last + 1, step)[:MAX_MULTIPLES]
    if not found:
        raise BadInput(f"no multiple of {step} is within the bounds", field)
    return f"(?:{'|'.join(map(str, found))})"


def count(schema: Mapping[str, Any], name: str, field: str) -> int | None:
    """A keyword that is a number of things. Raises: BadInput if it is another value."""
    value = schema.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value % 1 != 0 or value < 0:
        raise BadInput(f"{name} must be a whole number from 0 on, got {value!r}", field)
    return int(value)


def times(least: int, most: int | None) -> str:
    """The quantifier."""
    return "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"


def check_range(least: int, most: int | None, name: str, field: str) -> None:
    """Raises: BadInput if no value fits."""
    if most is not None and least > most:
        raise BadInput(f"{name} {least} is above the maximum {most}", field)


def _range(schema: Mapping[str, Any], field: str) -> tuple[int, int, int]:
    """The first and the last whole number, bounds included, and of which number they must be a multiple.

    Raises: BadInput if a bound is no number.
    """
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    for name in names:
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
            raise BadInput(f"{name} must be a number of at most {DIGITS} digits, got {value!r}", field)
    step = schema.get("multipleOf", 1)
    if isinstance(step, bool) or not isinstance(step, int | float) or step % 1 != 0 or not 0 < step <= LARGEST:
        raise BadInput(f"multipleOf is supported for whole numbers from 1 on, got {step!r}", field)
    low = [schema[name] for name in names[:2] if name in schema]
    high = [schema[name] for name in names[2:] if name in schema]
    first, last = math.ceil(max(low, default=-LARGEST)), math.floor(min(high, default=LARGEST))
    return first, last, int(step)


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
    return searched(pattern, CHARACTER)


def searched(pattern: str, character: str = "(?s:.)") -> str:
    """The pattern of all texts of these characters in which JSON Schema finds this one."""
    before = "" if pattern.startswith("^") else f"{character}*"
    after = "" if pattern.endswith("$") else f"{character}*"
    return f"{before}(?:{with_ascii_classes(without_anchors(pattern))}){after}"


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
