"""JSON schemas as parts of texts: each text is JSON that the schema accepts.

Objects have the properties that the schema names, in its order, and at most one space after each comma and colon. A
keyword that no automaton can express is narrowed (schema_narrowing.py) or refused by name; where another part of anyOf,
or the absence of a property, is allowed, the part with the keyword is left out. Schemas that refer to themselves are
expanded to MAX_DEPTH levels.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
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
    counted,
    member,
    members_of,
    object_of,
    object_with,
)
from shared.patterns.json_scalars import QUOTE, constant, integer, limits, number, searched, string
from shared.patterns.parts import Alternatives, Compiled, FormPart, JoinedParts, Literal, automaton_of, either
from shared.patterns.schema_keyword_names import TYPE_OF, UNSUPPORTED, assertions_of
from shared.patterns.schema_merging import Schema, apart, merged, same, with_prefix_items, without_properties
from shared.patterns.schema_narrowing import TYPES, in_own_scope, narrowed, needs_narrowing
from shared.patterns.schema_references import References

MAX_DEPTH = 3  # of a reference within itself
MAX_PARTS = 5_000
MAX_PATTERNS = 100  # that a schema has or needs
MAX_TRIED = 20_000  # beginnings of keys
MAX_PROPERTIES = 50  # required by their number alone
Depths = Mapping[str, int]  # of each reference around a part, its levels
SCALARS: Mapping[str, Callable[[Schema, str], FormPart]] = {"string": string, "number": number, "integer": integer}


def schema_part(schema: Any, field: str = "schema", left_out: list[str] | None = None) -> FormPart:
    """The texts of a JSON schema. `left_out` gets the fields of what cannot be written and is not
    needed. Raises: BadInput naming the
    field with what is not supported."""
    return schema_parts({field: schema}, [] if left_out is None else left_out)[0]


def schema_parts(schemas: Mapping[str, Any], left_out: list[str]) -> list[FormPart]:
    """As `schema_part`, for the schemas of several fields, which share the limits."""
    converter, parts = _Converter(left_out), []
    for field, schema in schemas.items():
        part = converter.whole(schema, field)
        if part is None:
            raise BadInput(f"{field} has no instance of at most {MAX_DEPTH} levels", field)
        parts.append(part)
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
        self._parts = self._num_patterns = 0  # converted so far
        self._compiled: set[str] = set()
        self._left_out = left_out

    def whole(self, schema: Any, field: str) -> FormPart | None:
        """The texts of a schema."""
        try:
            self._references = References(schema)
            return self.convert(self._references.root, field, {})
        except RecursionError:
            raise BadInput(f"{field} is nested too deep", field) from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # a keyword of a wrong type
            raise BadInput(f"{field} is not a valid JSON schema: {error}", field) from None

    def convert(self, schema: Any, field: str, depths: Depths) -> FormPart | None:
        """`depths`: the levels of each reference around this part."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise TooLarge(f"the schema has more than {MAX_PARTS} parts, with those of each reference", field)
        if isinstance(schema, bool) or schema == {}:
            return any_value(ANY_DEPTH) if schema is not False else None
        if not isinstance(schema, Mapping):
            raise BadInput(f"a schema must be an object, true or false, got {schema!r}", field)
        schema = assertions_of(schema)
        unsupported = next((name for name in UNSUPPORTED if name in schema), None)
        if unsupported is not None:
            raise BadInput(f"{unsupported} is not supported", field)
        if "$ref" in schema:
            plain, deeper = self._plain(schema, field, depths)
            return self.convert(plain, field, deeper)
        combining = next((name for name in ("allOf", "anyOf", "oneOf") if name in schema), None)
        if combining is not None:
            return self._combined(schema, combining, field, depths)
        if needs_narrowing(schema):
            return self.convert(narrowed(schema, field, self._matches), field, depths)
        return self._values(schema, field, depths)

    def _values(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        """Of a schema without references, parts and keywords to narrow."""
        if "const" in schema or "enum" in schema:
            return self._constants(schema, field, depths)
        if not schema:
            return any_value(ANY_DEPTH)
        return _either(
            self._written([partial(self._of_type, kind, schema, field, depths) for kind in _types(schema, field)])
        )

    def _constants(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        """Those values of `enum` or `const` that also match the keywords beside it about values of their type."""
        values, kinds = _values_of(schema, field), {TYPE_OF[name] for name in schema if name in TYPE_OF}
        for kind in sorted(kinds):
            own = {name: part for name, part in schema.items() if TYPE_OF.get(name) == kind}
            part = self.convert({**own, "type": kind}, field, depths)
            automaton = automaton_of(part) if part is not None else None
            values = [
                value
                for value in values
                if not _is_of(value, kind)
                or (automaton is not None and automaton.accepts(json.dumps(value, ensure_ascii=False)))
            ]
        return _either(constant(value) for value in values)

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
        self._left_out += [str(error.field) for error in errors]
        return found

    def _count_pattern(self, pattern: Any, field: str) -> None:
        """Raises: TooLarge if it is one pattern too many."""
        self._num_patterns += str(pattern) not in self._compiled
        self._compiled.add(str(pattern))
        if self._num_patterns > MAX_PATTERNS:
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
        parts = schema[name]
        siblings: Any = {key: value for key, value in schema.items() if key != name}
        if not isinstance(parts, list) or not parts:
            raise BadInput(f"{name} must be a list of schemas", field)
        plains = []
        for part in parts:
            plain, deeper = self._plain(part, field, depths)
            plains.append((in_own_scope(plain, field) if siblings or name == "allOf" else plain, deeper))
            depths = deeper if name == "allOf" else depths
        if name == "allOf":
            for plain, _ in plains:
                siblings = merged(siblings, plain, field, self._matches)
            return self.convert(siblings, field, depths)
        if name == "oneOf":
            absent = apart([plain for plain, _ in plains], field)
            plains = [
                (merged(plain, without_properties(own), field, self._matches), deeper)
                for (plain, deeper), own in zip(plains, absent, strict=True)
            ]
        wholes = [(merged(plain, siblings, field, self._matches), deeper) for plain, deeper in plains]
        ways = [partial(self.convert, whole, f"{field}.{name}[{at}]", own) for at, (whole, own) in enumerate(wholes)]
        return _either(self._written(ways))

    def _plain(self, part: Any, field: str, depths: Depths) -> tuple[Any, Depths]:
        """A part without a reference, and the levels within it. A part that is too deep is false."""
        while isinstance(part, Mapping) and "$ref" in part:
            target, depth = self._references.find(part["$ref"], field), depths.get(part["$ref"], 0)
            if depth == MAX_DEPTH:
                return False, depths
            depths = {**depths, part["$ref"]: depth + 1}
            siblings = assertions_of({name: value for name, value in part.items() if name != "$ref"})
            part = merged(in_own_scope(target, field), siblings, field, self._matches) if siblings else target
        return part, depths

    def _array(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        schema = with_prefix_items(schema)
        least, most = limits(schema, "Items", field)
        if schema.get("uniqueItems") and most not in {0, 1}:
            items, _ = self._plain(schema.get("items", True), field, depths)
            if isinstance(items, Mapping) and "enum" in items and "prefixItems" not in schema:
                return _in_order(items, least, most, field)
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
            first, most = first[:cut], cut
        head = [item for item in first if item is not None][: most if most is not None else None]
        least = max(least, len(head))  # fewer are possible too, but never needed
        item = self.convert(schema.get("items", True), f"{field}.items", depths) if most != len(head) else None
        if item is None and least > len(head):
            return None
        return array_of(head, item, least - len(head), None if most is None else most - len(head))

    def _object(self, schema: Schema, field: str, depths: Mapping[str, int]) -> FormPart | None:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise BadInput("properties must be an object, and required a list", field)
        least, most = limits(schema, "Properties", field)
        others = schema.get("additionalProperties", True)
        if not properties and not required:
            return self._of_keys(schema, least, most, field, depths)
        missing = {name: others for name in required if name not in properties}
        members: list[Member] = []
        for name, part in {**properties, **missing}.items():
            if name in required:
                value = self.convert(part, f"{field}.{name}", depths)
                if value is None:
                    return None
            else:
                value = self._optional(part, f"{field}.{name}", depths)
            if value is not None:
                members.append((member(name, value), name in required))
        members = counted(members, least, most)
        if not least <= len(members) <= (len(members) if most is None else most):
            return None
        return object_with(members)

    def _optional(self, part: Any, field: str, depths: Depths) -> FormPart | None:
        """A property that may be left out."""
        try:
            return self.convert(part, field, depths)
        except TooLarge:
            raise
        except BadInput as error:
            self._left_out.append(str(error.field))
            return None

    def _of_keys(self, schema: Schema, least: int, most: int | None, field: str, depths: Depths) -> FormPart | None:
        """An object of keys that the schema does not name, but may have patterns for."""
        if least > MAX_PROPERTIES:
            raise BadInput(f"minProperties is supported up to {MAX_PROPERTIES}, got {least}", field)
        members = [
            (key, value)
            for key, part, name in self._keys(schema, field, depths)
            if (value := self.convert(part, f"{field}.{name}", depths)) is not None
        ]
        if not members or most == 0:
            return None if least else object_with([])
        if least > 1:  # distinct names
            key, value = members[0]
            names = list(islice(_texts(key), least)) if key is not KEY else [f'"key{i}"' for i in range(1, least + 1)]
            whole = [(JoinedParts((Literal(name), COLON, value)), True) for name in names]
            return object_with(whole) if len(names) == least else None
        return object_of(either([JoinedParts((key, COLON, value)) for key, value in members]), least, most)

    def _keys(self, schema: Schema, field: str, depths: Depths) -> Iterator[tuple[FormPart, Any, str]]:
        """The keys that `propertyNames` allows, each with the schema of its values, and where that is."""
        names = self._plain(schema.get("propertyNames", True), field, depths)[0]
        if names is True or names == {}:
            allowed = None
        else:
            names = merged(names, {"type": "string"}, field, self._matches)
            part = self.convert(names, f"{field}.propertyNames", depths)
            if part is None:
                return
            allowed = automaton_of(part)
        values, patterns = schema.get("patternProperties", {}), dict[str, PatternAutomaton]()
        for pattern in values:
            self._count_pattern(pattern, field)
            patterns[pattern] = searched(pattern, field)
        for pattern, inner in patterns.items():
            alone: PatternAutomaton | None = inner  # the keys that match no other pattern, so each has one schema
            for beside, also in patterns.items():
                if beside != pattern and alone is not None and product(alone, also) is not None:
                    alone = product(alone, also, excluded=True)
            if alone is None:
                continue
            key = JoinedParts((QUOTE, Compiled(alone), QUOTE))
            found = product(automaton_of(key), allowed) if allowed is not None else None
            if allowed is None or found is not None:
                yield key if found is None else Compiled(found), values[pattern], f"patternProperties.{pattern}"
        if not patterns:
            other = KEY if allowed is None else Compiled(allowed)
            yield other, schema.get("additionalProperties", True), "additionalProperties"


def _texts(part: FormPart) -> Iterator[str]:
    """Texts of a part, the shortest first, by the bytes of ASCII."""
    automaton = automaton_of(part)
    waiting = [("", 0)]
    for text, state in waiting:
        if automaton.accepting[state]:
            yield text
        row = automaton.next_state[state, 32:127]
        for byte, target in enumerate(row.tolist(), 32):
            if target >= 0 and len(waiting) < MAX_TRIED:
                waiting.append((text + chr(byte), target))


def _either(ways: Iterable[FormPart | None]) -> FormPart | None:
    """The values of any of these."""
    possible = [way for way in ways if way is not None]
    return either(possible) if possible else None


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


def _values_of(schema: Schema, field: str) -> list[Any]:
    """The values of `enum` or `const` of the schema's types."""
    values = schema.get("enum", [schema.get("const")])
    if not isinstance(values, list):
        raise BadInput("enum must be a list", field)
    if "const" in schema:
        values = [value for value in values if same(value, schema["const"])]
    kinds = _types(schema, field) if "type" in schema else list(TYPES)
    return [value for value in values if any(_is_of(value, kind) for kind in kinds)]


def _is_of(value: Any, kind: str) -> bool:
    of_python: Mapping[str, tuple[type, ...]] = {
        "object": (dict,),
        "array": (list,),
        "string": (str,),
        "number": (int, float),
        "integer": (int,),
        "boolean": (bool,),
        "null": (type(None),),
    }
    return isinstance(value, of_python[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _in_order(items: Schema, least: int, most: int | None, field: str) -> FormPart | None:
    """An array of different values of a list, in its order."""
    texts = {json.dumps(value, sort_keys=True): value for value in items["enum"]}
    values = [constant(value) for value in texts.values() if any(_is_of(value, kind) for kind in _types(items, field))]
    if least > 1 or (most is not None and most < len(values)):
        raise BadInput("uniqueItems beside minItems above 1 or maxItems is not supported", field)
    if least > len(values):
        return None
    return JoinedParts(
        (Literal("["), members_of(counted([(value, False) for value in values], least, None)), Literal("]"))
    )
