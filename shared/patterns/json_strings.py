"""JSON's strings and constants as parts of texts."""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from shared.errors import BadInput
from shared.patterns.automaton import of_regex
from shared.patterns.byte_automaton import PatternAutomaton, longest_text, product
from shared.patterns.characters import ALL, LATIN, Codes, Range, with_whole_characters, without
from shared.patterns.compile_budget import Found, TooLarge, first_that_fits
from shared.patterns.counted_regex import without_limits, without_repeated_ends
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
    listed,
)
from shared.patterns.regex import read_regex
from shared.patterns.schema_keywords import NoValue, as_tuple, limits

# The characters of a JSON string: no control characters but those with a short escape
CODES: tuple[Range, ...] = without(ALL, ((0, 7), (11, 11), (14, 31), (127, 127)))
CHARACTER = Characters(CODES, escaped=True)
ANY_TEXT = RepeatedPart(CHARACTER)
QUOTE = Literal('"')
YEAR_MONTH_DAY = (
    "(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
NAME = "[a-z0-9]{1,20}(?:-[a-z0-9]{1,20}){0,2}"
HOST = rf"{NAME}(?:\.{NAME}){{1,3}}"
PLACE = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})"  # a character of a path
REST = rf"/(?:{PLACE}(?:{PLACE}|/)*)?(?:\?(?:{PLACE}|[/?])*)?(?:#(?:{PLACE}|[/?])*)?"
URI = rf"https?://(?:{HOST}|localhost)(?::[1-9][0-9]{{1,3}})?(?:{REST})?"
COUNT, HEX4 = "[0-9]{1,4}", "[0-9a-f]{1,4}"
LAPSE = f"T(?:{COUNT}H(?:{COUNT}M(?:{COUNT}S)?)?|{COUNT}M(?:{COUNT}S)?|{COUNT}S)"
DAYS = f"{COUNT}D|{COUNT}M(?:{COUNT}D)?|{COUNT}Y(?:{COUNT}M(?:{COUNT}D)?)?"
IPV6 = (
    *(f"(?:{HEX4}:){{7}}{HEX4}", f"(?:{HEX4}:){{1,7}}:", f"::(?:{HEX4}(?::{HEX4}){{0,6}})?"),
    *(f"(?:{HEX4}:){{{groups}}}(?::{HEX4}){{1,{7 - groups}}}" for groups in range(1, 7)),
)
EMAIL = rf"[A-Za-z0-9]{{1,30}}(?:[._+-][A-Za-z0-9]{{1,30}}){{0,2}}@{HOST}"
POINTER = "(?:/[A-Za-z0-9_-]{1,30}){0,6}"
FORMATS = {  # usual values of each; of others any string is accepted, as JSON Schema does by default
    "date": YEAR_MONTH_DAY,
    "time": CLOCK,
    "date-time": f"{YEAR_MONTH_DAY}T{CLOCK}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "duration": f"P(?:{COUNT}W|(?:{DAYS})(?:{LAPSE})?|{LAPSE})",
    **dict.fromkeys(("email", "idn-email"), EMAIL),
    **dict.fromkeys(("hostname", "idn-hostname"), HOST),
    **dict.fromkeys(("uri", "iri"), URI),
    **dict.fromkeys(("uri-reference", "uri-template", "iri-reference"), f"{URI}|{REST}"),
    "json-pointer": POINTER,
    "relative-json-pointer": f"[0-9]{POINTER}",
    "regex": "[A-Za-z0-9]{1,60}",
    "ipv6": "|".join(IPV6),
    "ipv4": r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
}
LENGTHS = re.compile(r"\^\(\?=\.\{([0-9]{1,6}),([0-9]{1,6})\}(?:\\\.\?)?\$\)")  # a look-ahead that bounds the length
COUNTED = 2_000  # states of a pattern with its lengths, above which a counter counts them


def constant(value: Any) -> FormPart:
    """One JSON value, as `json.dumps` writes it, or with each </ as <\\/, which is the same value."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return either([Literal(text), *([Literal(text.replace("</", "<\\/"))] if "</" in text else [])])


def string(schema: Mapping[str, Any], field: str) -> FormPart:
    """A JSON string. `pattern` and `format` may also be tuples, all of which it matches. Raises: BadInput naming the
    field."""
    found: PatternAutomaton | None = None
    names, lengths = [], [limits(schema, "Length", field)]
    given = [(name, value) for name in ("pattern", "format") for value in as_tuple(schema.get(name, ()))]
    for name, value in given:
        if name == "format" and value not in FORMATS:
            continue
        names.append(f"{name} {value!r}")
        if name == "format":
            own = _format(value)
        elif ahead := LENGTHS.match(value):
            own = searched(f"^(?=.*$){value[ahead.end() :]}", field)
            lengths.append((int(ahead[1]), int(ahead[2])))
        else:
            own, longest = _named(_counted, value, field)
            lengths.append((0, longest))
        found = own if found is None else _both(found, own, names, field)
    least = max(shortest for shortest, _ in lengths)
    most = min((longest for _, longest in lengths if longest is not None), default=None)
    limits({"minLength": least, "maxLength": most}, "Length", field)
    if found is None:
        return JoinedParts(
            (QUOTE, listed(NOTHING, CHARACTER, NOTHING, least + 1, None if most is None else most + 1), QUOTE)
        )
    if most is not None and (longest := longest_text(found)) is not None and longest <= most:
        most = None
    is_small = most is None or most * len(found.accepting) <= COUNTED
    if least or (most is not None and is_small):
        names += [f"{name} {schema[name]!r}" for name in ("minLength", "maxLength") if name in schema]
        bounded = automaton_of(RepeatedPart(CHARACTER, least, most if is_small else None))
        found = _both(found, bounded, names, field)
    return JoinedParts((QUOTE, Compiled(found, None if is_small else most), QUOTE))


@lru_cache(64)
def _format(name: str) -> PatternAutomaton:
    return automaton_of(read_regex(FORMATS[name]))


def _both(one: PatternAutomaton, other: PatternAutomaton, names: list[str], field: str) -> PatternAutomaton:
    found = product(one, other)
    if found is None:
        raise NoValue(f"no text is written that has {' and '.join(names)}", field)
    return found


def searched(pattern: str, field: str) -> PatternAutomaton:
    """The strings, as JSON writes them, in which JSON Schema finds a pattern. Raises: BadInput naming the field."""
    return _named(_searched, pattern, field)


def _named(read: Callable[[str], Found], pattern: str, field: str) -> Found:
    try:
        return read(pattern)
    except TooLarge:
        raise
    except BadInput as error:
        raise BadInput(f"pattern {pattern!r}: {error.message}", field) from None


@lru_cache(256)
def _counted(pattern: str) -> tuple[PatternAutomaton, int | None]:
    """As `_searched`, and the most characters of the texts, where repetitions have large limits."""
    counted = without_limits(_read(pattern), is_searched=True)
    if counted is None:
        return _searched(pattern), None
    around = NOTHING if counted.is_exact else ANY_TEXT
    ways = [
        lambda: (_searched(pattern), None),
        lambda: (of_regex(counted.part, ANY_TEXT, before=around, after=around), counted.longest),
    ]
    return first_that_fits(*ways[counted.is_exact :])


@lru_cache(256)
def _searched(pattern: str) -> PatternAutomaton:
    latin = without(CODES, without(ALL, LATIN))
    return first_that_fits(
        lambda: of_regex(_read(pattern), ANY_TEXT, before=ANY_TEXT, after=ANY_TEXT),
        lambda: of_regex(_read(pattern, latin), ANY_TEXT, after=ANY_TEXT),  # found only where the text begins
    )


def _read(pattern: str, within: Codes = CODES) -> FormPart:
    return without_repeated_ends(read_regex(with_whole_characters(pattern), within, escaped=True))
