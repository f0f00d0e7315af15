"""JSON schemas as parts of texts: each text is JSON that the schema accepts.

Objects have the properties that the schema names, in its order, and at most one space after each comma and colon. A
keyword that no automaton can express is narrowed (schema_narrowing.py) or refused by name; where another part of anyOf,
or the absence of a property, is allowed, the part with the keyword is left out. Schemas that refer to themselves are
expanded to MAX_DEPTH levels.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from shared.errors import BadInput
from shared.patterns.compile_budget import TooLarge, current_budget
from shared.patterns.json_containers import (
    ANY_DEPTH,
    BOOLEAN,
    COLON,
    KEY,
    NULL,
    any_value,
    array_of,
    members_of,
    object_of,
)
from shared.patterns.json_numbers import number
from shared.patterns.json_strings import constant, string
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import Alternatives, FormPart, JoinedParts, Literal, any_of
from shared.patterns.schema_keywords import TYPE_OF, UNSUPPORTED, as_key, assertions_of, limits
from shared.patterns.schema_merging import TYPES, Schema, is_of, merged
from shared.patterns.schema_narrowing import in_own_scope, narrowed
from shared.patterns.schema_objects import MAX_DEPTH, Depths, ObjectConverter
from shared.patterns.schema_references import References
from shared.patterns.schema_traits import apart, without_impossible_ways

MAX_PARTS = 5_000
SCALARS: Mapping[str, Callable[[Schema, str], FormPart]] = {
    "string": string,
    "number": number,
    "integer": partial(number, decimals=0),
}


def schema_part(schema: Any, field: str = "schema", left_out: list[str] | None = None) -> FormPart:
    """The texts of a JSON schema. `left_out` gets the fields of what cannot be written and is not needed. Raises:
    BadInput naming the field with what is not supported."""
    return schema_parts({field: schema}, [] if left_out is None else left_out)[0]


def schema_parts(schemas: Mapping[str, Any], left_out: list[str]) -> list[FormPart]:
    """As `schema_part`, for the schemas of several fields, which share the limits."""
    converter = _Converter(left_out)
    return [converter.whole(schema, field) for field, schema in schemas.items()]


def object_part() -> FormPart:
    """Any JSON object, whose values have at most ANY_DEPTH levels."""
    return object_of(JoinedParts((KEY, COLON, any_value(ANY_DEPTH))), 0, None)


def choice_part(choices: Sequence[str]) -> FormPart:
    """These texts."""
    return Alternatives(tuple(Literal(choice) for choice in choices))


class _Converter(ObjectConverter):
    """Converts the parts of schemas. None is a part without instances."""

    def __init__(self, left_out: list[str]) -> None:
        super().__init__(left_out)
        self._parts = 0  # converted so far

    def whole(self, schema: Any, field: str) -> FormPart:
        """The texts of a schema. Raises: BadInput, also if there are none."""
        try:
            self._references = References(schema)
            found = self.convert(self._references.root, field, {})
        except RecursionError:
            raise BadInput(f"{field} is nested too deep", field) from None
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):  # a wrong value within a keyword
            raise BadInput(f"{field} is not a valid JSON schema", field) from None
        if found is None:
            levels = f" of at most {MAX_DEPTH} levels" if self._is_cut else ""
            reason = f": {self._without_value} is required, but has no allowed value" if self._without_value else ""
            raise BadInput(f"{field} has no instance{levels}{reason}", field)
        return found

    def convert(self, schema: Any, field: str, depths: Depths) -> FormPart | None:
        """`depths`: the levels of each reference around this part."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise TooLarge(f"the schema has more than {MAX_PARTS} parts, with those of each reference", field)
        if isinstance(schema, bool):
            return any_value(ANY_DEPTH) if schema else None
        if not isinstance(schema, Mapping):
            raise BadInput(f"a schema must be an object, true or false, got {schema!r}", field)
        schema = assertions_of(schema, field)
        unsupported = next((name for name in UNSUPPORTED if name in schema), None)
        if unsupported is not None:
            raise BadInput(f"{unsupported} is not supported", field)
        if "$ref" in schema:
            plain, deeper = self._plain(schema, field, depths)
            return self.convert(plain, field, deeper)
        combining = next((name for name in ("allOf", "anyOf", "oneOf") if name in schema), None)
        if combining is not None:
            return self._combined(schema, combining, field, depths)
        narrow = narrowed(schema, field, self._left_out)
        return self._values(schema, field, depths) if narrow is schema else self.convert(narrow, field, depths)

    def _values(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        """Of a schema without references, parts and keywords to narrow."""
        if "enum" in schema:
            return self._constants(schema, field, depths)
        if not schema:
            return any_value(ANY_DEPTH)
        return self._written(*(partial(self._of_type, kind, schema, field, depths) for kind in _types(schema, field)))

    def _constants(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        """Those values of `enum` that also match the type and the keywords about values of their type, without
        `format`, whose patterns have usual texts only."""
        kinds = _types(schema, field) if "type" in schema else TYPES
        values = [value for value in schema["enum"] if any(is_of(value, kind) for kind in kinds)]
        rules = {name: TYPE_OF[name] for name in schema if name in TYPE_OF and name != "format"}
        for kind in sorted({*rules.values()}):
            own = {name: schema[name] for name, about in rules.items() if about == kind}
            accepts = self._tester({**own, "type": kind}, field, depths)
            values = [value for value in values if not is_of(value, kind) or accepts(value)]
        return any_of(constant(value) for value in values)

    def _tester(self, schema: Any, field: str, depths: Depths) -> Callable[[Any], bool]:
        """Whether a value is among the texts of a schema."""
        part = self.convert(schema, field, depths)
        automaton = automaton_of(part) if part is not None else None
        return lambda value: automaton is not None and automaton.accepts(json.dumps(value, ensure_ascii=False))

    def _of_type(self, kind: str, schema: Schema, field: str, depths: Mapping[str, int]) -> FormPart | None:
        if kind in {"object", "array"}:
            convert = self._object if kind == "object" else self._array
            return convert(schema, field, depths)
        if kind == "string" and "pattern" in schema:
            self._count_pattern(schema["pattern"], field)
        if kind in SCALARS:
            return SCALARS[kind](schema, field)
        return BOOLEAN if kind == "boolean" else NULL

    def _combined(self, schema: Schema, name: str, field: str, depths: Depths) -> FormPart | None:
        siblings: Any = {key: value for key, value in schema.items() if key != name}
        parts = schema[name] if name != "oneOf" else self._kept_apart(schema[name], siblings, field, depths)
        plains = []
        for part in parts:
            plain, deeper = self._plain(part, field, depths)
            plains.append((in_own_scope(plain, field) if siblings or name == "allOf" else plain, deeper))
            depths = deeper if name == "allOf" else depths
        if name == "allOf":
            for plain, _ in plains:
                if all(isinstance(each, Mapping) and "oneOf" in each for each in (siblings, plain)):
                    ways = {"anyOf": self._kept_apart(siblings.pop("oneOf"), siblings, field, depths)}
                    siblings = merged(siblings, ways, field, self._matches)
                multiplies = all(isinstance(each, Mapping) and "anyOf" in each for each in (siblings, plain))
                siblings = merged(siblings, plain, field, self._matches)
                if multiplies:
                    siblings = without_impossible_ways(siblings, field, self._references.find)
            return self.convert(siblings, field, depths)
        wholes = [(merged(siblings, plain, field, self._matches), deeper) for plain, deeper in plains]
        return self._written(
            *(partial(self.convert, whole, f"{field}.{name}[{at}]", own) for at, (whole, own) in enumerate(wholes))
        )

    def _kept_apart(self, parts: Sequence[Any], siblings: Schema, field: str, depths: Depths) -> list[Any]:
        """The parts of oneOf, narrowed so that no value that matches the siblings matches two of them."""
        wholes = [{"allOf": [siblings, self._plain(part, field, depths)[0]]} for part in parts]
        ways = zip(parts, apart(wholes, field, self._references.find), strict=True)
        return [part if own is True else {"allOf": [part, own]} for part, own in ways]

    def _array(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        least, most = limits(schema, "Items", field)
        if schema.get("uniqueItems") and most not in {0, 1}:
            items, deeper = self._plain(schema.get("items", True), field, depths)
            if isinstance(items, Mapping) and "enum" in items and "prefixItems" not in schema:
                accepts = self._tester(items, f"{field}.items", deeper)
                values = {as_key(value): value for value in items["enum"]}.values()
                members = [(constant(value), False) for value in values if accepts(value)]
                listed = JoinedParts((Literal("["), members_of(members, least, most), Literal("]")))
                return listed if least <= len(members) else None
            if least > 1 or "prefixItems" in schema:
                raise BadInput("uniqueItems is supported for items with enum, or for at most one item", field)
            most = 1
        first = [
            self.convert(item, f"{field}.prefixItems[{at}]", depths)
            for at, item in enumerate(schema.get("prefixItems", []))
        ]
        if None in first:
            cut = first.index(None)
            if least > cut:
                return None
            first, most = first[:cut], cut if most is None else min(cut, most)
        head = [item for item in first if item is not None][:most]
        least = max(least, len(head))  # fewer are possible too, but never needed
        budget = current_budget()
        kept = budget.list_states * 3 // 4 if most is not None else 0  # lists within the items share the rest
        budget.list_states -= kept
        item = self.convert(schema.get("items", True), f"{field}.items", depths) if most != len(head) else None
        budget.list_states += kept
        if item is None and least > len(head):
            return None
        further = least - len(head), None if most is None else most - len(head)
        if item is None:
            return array_of(head, None, *further)
        return array_of(head, *self._fitted(item, *further, (f"{field}.maxItems", f"{field}.items"), len(head)))


def _types(schema: Schema, field: str) -> list[str]:
    """The types of a schema's values; that of its keywords if it names none."""
    named = schema.get("type")
    listed = [named] if isinstance(named, str) else named
    if listed is None:  # values of other types match too, but this one is meant
        meant = {TYPE_OF[name] for name in schema if name in TYPE_OF}
        listed = [next((kind for kind in TYPES if kind in meant), "string")]
    unknown = [kind for kind in listed if kind not in TYPES] if isinstance(listed, list) else [named]
    if unknown:
        raise BadInput(f"type must be among {', '.join(TYPES)}, got {named!r}", field)
    return list(listed)
