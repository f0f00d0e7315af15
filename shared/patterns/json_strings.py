"""JSON's strings and constants as parts of texts."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from shared.errors import BadInput
from shared.patterns.automaton import of_regex
from shared.patterns.byte_automaton import PatternAutomaton, longest_text, product
from shared.patterns.characters import ALL, JSON_CODES, LATIN, Codes, with_whole_characters, without
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
from shared.patterns.string_formats import FORMATS, format_automaton

CHARACTER = Characters(JSON_CODES, escaped=True)
ANY_TEXT = RepeatedPart(CHARACTER)
QUOTE = Literal('"')
LENGTHS = re.compile(r"\^\(\?=\.\{([0-9]{1,6}),([0-9]{1,6})\}(?:\\\.\?)?\$\)")  # a look-ahead that bounds the length
COUNTED = 2_000  # states of a pattern with its lengths, above which a counter counts them


def constant(value: Any) -> FormPart:
    """One JSON value, as `json.dumps` writes it, or with each </ as <\\/, which is the same value."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return either([Literal(text), *([Literal(text.replace("</", "<\\/"))] if "</" in text else [])])


def string(schema: Mapping[str, Any], field: str) -> FormPart:
    """A JSON string. `pattern` and `format` may also be tuples, all of which it matches, but for a format of which the
    patterns leave no text. Raises: BadInput naming the field."""
    found: PatternAutomaton | None = None
    names, lengths = [], [limits(schema, "Length", field)]
    given = [(name, value) for name in ("pattern", "format") for value in as_tuple(schema.get(name, ()))]
    for name, value in given:
        if name == "format" and value not in FORMATS:
            continue
        if name == "format":
            own = format_automaton(value)
        elif ahead := LENGTHS.match(value):
            own = searched(f"^(?=.*$){value[ahead.end() :]}", field)
            lengths.append((int(ahead[1]), int(ahead[2])))
        else:
            own, longest = _named(_counted, value, field)
            lengths.append((0, longest))
        both = own if found is None else product(found, own)
        if both is None and name == "format" and "pattern" in schema:
            continue
        names.append(f"{name} {value!r}")
        found = both or _without_text(names, field)
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
        found = product(found, bounded) or _without_text(names, field)
    return JoinedParts((QUOTE, Compiled(found, None if is_small else most), QUOTE))


def _without_text(names: Sequence[str], field: str) -> NoReturn:
    raise NoValue(f"no text is written that has {' and '.join(names)}", field)


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
    latin = without(JSON_CODES, without(ALL, LATIN))
    return first_that_fits(
        lambda: of_regex(_read(pattern), ANY_TEXT, before=ANY_TEXT, after=ANY_TEXT),
        lambda: of_regex(_read(pattern, latin), ANY_TEXT, after=ANY_TEXT),  # found only where the text begins
    )


def _read(pattern: str, within: Codes = JSON_CODES) -> FormPart:
    return without_repeated_ends(read_regex(with_whole_characters(pattern), within, escaped=True))
