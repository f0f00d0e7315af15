"""JSON schemas as parts of texts: each text is JSON that the schema accepts.

Objects have the properties that the schema names, in its order, and at most one space after each comma and colon. A
keyword that no automaton can express is narrowed (schema_narrowing.py) or refused by name; where another part of anyOf,
or the absence of a property, is allowed, the part with the keyword is left out. Schemas that refer to themselves are
expanded to MAX_DEPTH levels.
"""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from shared.errors import BadInput
from shared.patterns.byte_automaton import PatternAutomaton, product
from shared.patterns.compile_budget import TooLarge
from shared.patterns.json_containers import (
    ANY_DEPTH,
    BOOLEAN,
    COLON,
    KEY,
    NULL,
    Member,
    any_value,
    array_of,
    member,
    members_of,
    object_of,
    object_with,
)
from shared.patterns.json_numbers import number
from shared.patterns.json_strings import QUOTE, constant, searched, string
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import Alternatives, Compiled, FormPart, JoinedParts, Literal, any_of, either
from shared.patterns.schema_keywords import TYPE_OF, UNSUPPORTED, NoValue, as_key, assertions_of, limits
from shared.patterns.schema_merging import TYPES, Schema, apart, is_of, merged, without_impossible_ways
from shared.patterns.schema_narrowing import in_own_scope, narrowed
from shared.patterns.schema_references import References

MAX_DEPTH = 3  # of a reference within itself
MAX_PARTS = 5_000
MAX_PATTERNS = 100  # that a schema has or needs
MAX_TRIED = 20_000  # beginnings of keys
MAX_FURTHER = 50  # properties that are required by their number alone
OTHERS = "additionalProperties"
Depths = Mapping[str, int]  # of each reference around a part, its levels
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
    converter, parts = _Converter(left_out), []
    for field, schema in schemas.items():
        parts.append(converter.whole(schema, field))
    return parts


def object_part() -> FormPart:
    """Any JSON object, whose values have at most ANY_DEPTH levels."""
    return object_of(JoinedParts((KEY, COLON, any_value(ANY_DEPTH))), 0, None)


def choice_part(choices: Sequence[str]) -> FormPart:
    """These texts."""
    return Alternatives(tuple(Literal(choice) for choice in choices))


class _Converter:
    """Converts the parts of schemas. None is a part without instances."""

    def __init__(self, left_out: list[str]) -> None:
        self._references = References(True)  # of the schema that is converted
        self._parts = 0  # converted so far
        self._is_cut = False  # whether a reference has more levels than MAX_DEPTH
        self._patterns: set[str] = set()
        self._left_out = left_out
        self._without_value = ""  # the first required property without a possible value

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
        narrow = narrowed(schema, field)
        return self._values(schema, field, depths) if narrow is schema else self.convert(narrow, field, depths)

    def _values(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        """Of a schema without references, parts and keywords to narrow."""
        if "enum" in schema:
            return self._constants(schema, field, depths)
        if not schema:
            return any_value(ANY_DEPTH)
        return any_of(
            self._written([partial(self._of_type, kind, schema, field, depths) for kind in _types(schema, field)])
        )

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

    def _matches(self, pattern: Any, name: str, field: str) -> bool:
        """Whether a pattern, which JSON Schema searches in a text, is in this name."""
        self._count_pattern(pattern, field)
        return searched(pattern, field).accepts(json.dumps(name, ensure_ascii=False)[1:-1])

    def _written(self, ways: Sequence[Callable[[], FormPart | None]]) -> list[FormPart | None]:
        """The ways that can be written; the first error if none can."""
        found: list[FormPart | None] = []
        errors = []
        for way in ways:
            try:
                found.append(way())
            except TooLarge:
                raise
            except BadInput as error:
                errors.append(error)
        if errors and all(part is None for part in found):
            raise errors[0]
        self._leave_out(errors)
        return found

    def _leave_out(self, errors: Iterable[BadInput]) -> None:
        """Note the fields of parts that cannot be written; parts without a value are not missed."""
        self._left_out += [str(error.field) for error in errors if not isinstance(error, NoValue)]

    def _count_pattern(self, pattern: Any, field: str) -> None:
        """Raises: TooLarge if it is one pattern too many."""
        self._patterns.add(str(pattern))
        if len(self._patterns) > MAX_PATTERNS:
            raise TooLarge(f"the schema has or needs more than {MAX_PATTERNS} patterns", field)

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
        return any_of(
            self._written(
                [partial(self.convert, whole, f"{field}.{name}[{at}]", own) for at, (whole, own) in enumerate(wholes)]
            )
        )

    def _kept_apart(self, parts: Sequence[Any], siblings: Schema, field: str, depths: Depths) -> list[Any]:
        """The parts of oneOf, narrowed so that no value that matches the siblings matches two of them."""
        wholes = [{"allOf": [siblings, self._plain(part, field, depths)[0]]} for part in parts]
        ways = zip(parts, apart(wholes, field, self._references.find), strict=True)
        return [part if own is True else {"allOf": [part, own]} for part, own in ways]

    def _plain(self, part: Any, field: str, depths: Depths) -> tuple[Any, Depths]:
        """A part without a reference, and the levels within it. A part that is too deep is false."""
        while isinstance(part, Mapping) and "$ref" in part:
            part = assertions_of(part, field)
            target, depth = self._references.find(part["$ref"], field), depths.get(part["$ref"], 0)
            if depth == MAX_DEPTH:
                self._is_cut = True
                return False, depths
            depths = {**depths, part["$ref"]: depth + 1}
            del part["$ref"]
            part = merged(in_own_scope(target, field), part, field, self._matches) if part else target
        return part, depths

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
        item = self.convert(schema.get("items", True), f"{field}.items", depths) if most != len(head) else None
        if item is None and least > len(head):
            return None
        return array_of(head, item, least - len(head), None if most is None else most - len(head))

    def _object(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        named = dict.fromkeys([*schema.get("properties", {}), *schema.get("required", [])])
        required = set(schema.get("required", []))
        least, most = limits(schema, "Properties", field)
        if not named and least < 2 and (found := self._of_keys(schema, least, most, field, depths)) is not None:
            return found
        key = self._key(schema, field, depths)
        allowed = automaton_of(key) if key not in {None, KEY} else None
        members: list[Member] = []
        for name in named:
            value = None
            if key is not None and (allowed is None or allowed.accepts(json.dumps(name, ensure_ascii=False))):
                convert = self.convert if name in required else self._optional
                value = convert(self._property(schema, name, field), f"{field}.{name}", depths)
            if value is None and name in required:
                self._without_value = self._without_value or f"{field}.{name}"
                return None
            if value is not None:
                members.append((member(name, value), name in required))
        members += self._further(schema, named, least - len(members), field, depths)
        if least > len(members) or (most is not None and most < len(required)):
            return None
        return object_with(members, least, most)

    def _property(self, schema: Schema, name: str, field: str) -> Any:
        """The schema of a property that an object schema names or requires."""
        patterns = schema.get("patternProperties", {}).items()
        matching = [own for pattern, own in patterns if self._matches(pattern, name, field)]
        others = True if matching else schema.get("additionalProperties", True)
        own = schema.get("properties", {}).get(name, others)
        return {"allOf": [own, *matching]} if matching else own

    def _optional(self, part: Any, field: str, depths: Depths) -> FormPart | None:
        """A property that may be left out."""
        try:
            return self.convert(part, field, depths)
        except TooLarge:
            raise
        except BadInput as error:
            self._leave_out([error])
            return None

    def _of_keys(self, schema: Schema, least: int, most: int | None, field: str, depths: Depths) -> FormPart | None:
        """An object of keys that the schema does not name: those of its patterns, or if it has none any."""
        keys = self._keys(schema, field, depths)
        if schema.get("patternProperties"):
            keys = takewhile(lambda each: each[2] != OTHERS, keys)
        members = [
            JoinedParts((key, COLON, value))
            for key, part, name in keys
            if (value := self.convert(part, f"{field}.{name}", depths)) is not None
        ]
        if not members or most == 0:
            return None if least else object_with([])
        return object_of(either(members), least, most)

    def _further(self, schema: Schema, named: Container[str], count: int, field: str, depths: Depths) -> list[Member]:
        """`count` members that the schema does not name, or as many as there are."""
        found: dict[str, Member] = {}
        for key, part, where in self._keys(schema, field, depths) if count > 0 else ():
            value = self.convert(part, f"{field}.{where}", depths)
            if value is None:
                continue
            if count > MAX_FURTHER:
                raise BadInput(f"minProperties is supported up to {MAX_FURTHER} beyond the named properties", field)
            for text in _texts(automaton_of(key)):
                if (name := json.loads(text)) not in named:
                    found.setdefault(name, (JoinedParts((Literal(text), COLON, value)), False))
                if len(found) == count:
                    return [*found.values()]
        return [*found.values()]

    def _key(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        """The keys that `propertyNames` allows."""
        names = self._plain(schema.get("propertyNames", True), field, depths)[0]
        if names is True or names == {}:
            return KEY
        return self.convert(merged(names, {"type": "string"}, field, self._matches), f"{field}.propertyNames", depths)

    def _keys(self, schema: Schema, field: str, depths: Depths) -> Iterator[tuple[FormPart, Any, str]]:
        """The keys that an object schema does not name, each with the schema of its values, and where that is."""
        allowed, values = self._key(schema, field, depths), schema.get("patternProperties", {})
        if allowed is not None and not values:
            yield allowed, schema.get(OTHERS, True), OTHERS
        if allowed is None or not values:
            return
        patterns = {}
        for pattern in values:
            self._count_pattern(pattern, field)
            patterns[pattern] = automaton_of(JoinedParts((QUOTE, Compiled(searched(pattern, field)), QUOTE)))
        whole = automaton_of(allowed)
        for pattern, own in patterns.items():  # the keys that match no other pattern, so each has one schema
            others = [other for beside, other in patterns.items() if beside != pattern]
            if (alone := _outside(product(whole, own), others)) is not None:
                yield Compiled(alone), values[pattern], f"patternProperties.{pattern}"
        if (alone := _outside(whole, patterns.values())) is not None:
            yield Compiled(alone), schema.get(OTHERS, True), OTHERS


def _outside(found: PatternAutomaton | None, others: Iterable[PatternAutomaton]) -> PatternAutomaton | None:
    """The texts that are of none of the others; None: no text."""
    for other in others:
        found = product(found, other, excluded=True) if found is not None else None
    return found


def _texts(automaton: PatternAutomaton) -> Iterator[str]:
    """Texts of keys: simple ones if possible, then the shortest, by the bytes of ASCII."""
    yield from filter(automaton.accepts, (f'"key{i}"' for i in range(1, MAX_TRIED // 100)))
    waiting = [("", 0)]
    for text, state in waiting:
        if automaton.accepting[state]:
            yield text
        row = automaton.next_state[state, 32:127]
        for byte, target in enumerate(row.tolist(), 32):
            if target >= 0 and len(waiting) < MAX_TRIED:
                waiting.append((text + chr(byte), target))


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
