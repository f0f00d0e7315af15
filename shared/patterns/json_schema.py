"""JSON schemas as patterns: each text that matches is JSON that the schema accepts.

Objects have the properties that the schema names, in its order, and at most one space after each comma and colon. A
keyword that no pattern can express is narrowed (schema_narrowing.py) or refused by name. Schemas that refer to
themselves are expanded to MAX_DEPTH levels.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from shared.errors import BadInput
from shared.patterns.automaton import PatternAutomaton, compile_pattern
from shared.patterns.json_containers import (
    ANY_DEPTH,
    COLON,
    COMMA,
    any_value,
    counted,
    either,
    listed,
    members_of,
    object_of,
)
from shared.patterns.json_scalars import check_range, constant, count, integer, literal, number, searched, string, times
from shared.patterns.schema_merging import (
    TYPE_OF,
    UNSUPPORTED,
    Schema,
    check_disjoint,
    merged,
    same,
    with_prefix_items,
    without_annotations,
)
from shared.patterns.schema_narrowing import NARROWED_KEYWORDS, TYPES, in_own_scope, narrowed

MAX_DEPTH = 3  # of a reference within itself
MAX_PARTS = 5_000
MAX_PATTERNS = 16  # that a schema has or needs
MAX_PROPERTIES = 50  # required by their number alone
Depths = Mapping[str, int]  # of each reference around a part, its levels
SCALARS: Mapping[str, Callable[[Schema, str], str]] = {"string": string, "number": number, "integer": integer}


def schema_pattern(schema: Any, field: str = "schema") -> str:
    """The pattern of a JSON schema. Raises: BadInput naming the field with what is not supported."""
    return schema_patterns({field: schema})[0]


def schema_patterns(schemas: Mapping[str, Any]) -> list[str]:
    """As `schema_pattern`, for the schemas of several fields, which share the limits."""
    converter, patterns = _Converter(), []
    for field, schema in schemas.items():
        pattern = converter.whole(schema, field)
        if pattern is None:
            raise BadInput(f"{field} has no instance of at most {MAX_DEPTH} levels", field)
        patterns.append(pattern)
    return patterns


def object_pattern() -> str:
    """The pattern of any JSON object, whose values have at most ANY_DEPTH levels."""
    return object_of(any_value(ANY_DEPTH), 0, None)


def choice_pattern(choices: Sequence[str]) -> str:
    """The pattern of these texts."""
    return "|".join(f"(?:{literal(choice)})" for choice in choices)


class _Converter:
    """Converts the parts of schemas. None is the pattern of a part without instances."""

    def __init__(self) -> None:
        self._root: Any = None  # the schema to which references refer
        self._parts = self._num_patterns = 0  # converted so far; each pattern takes a process
        self._compiled: set[str] = set()

    def whole(self, schema: Any, field: str) -> str | None:
        """The pattern of a schema."""
        self._root = schema
        try:
            return self.convert(schema, field, {})
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:  # a keyword of a wrong type
            raise BadInput(f"{field} is not a valid JSON schema: {error}", field) from None

    def convert(self, schema: Any, field: str, depths: Depths) -> str | None:
        """`depths`: the levels of each reference around this part."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadInput(f"the schema has more than {MAX_PARTS} parts, with those of each reference", field)
        if isinstance(schema, bool) or schema == {}:
            return any_value(ANY_DEPTH) if schema is not False else None
        if not isinstance(schema, Mapping):
            raise BadInput(f"a schema must be an object, true or false, got {schema!r}", field)
        schema = without_annotations(schema)
        unsupported = next((name for name in UNSUPPORTED if name in schema), None)
        if unsupported is not None:
            raise BadInput(f"{unsupported} is not supported", field)
        if "$ref" in schema:
            plain, deeper = self._plain(schema, field, depths)
            return self.convert(plain, field, deeper)
        combining = next((name for name in ("allOf", "anyOf", "oneOf") if name in schema), None)
        if combining is not None:
            return self._combined(schema, combining, field, depths)
        if not schema.keys().isdisjoint(NARROWED_KEYWORDS):
            return self.convert(narrowed(schema, field, self._matches), field, depths)
        return self._values(schema, field, depths)

    def _values(self, schema: Schema, field: str, depths: Depths) -> str | None:
        """Of a schema without references, parts and keywords to narrow."""
        if "const" in schema or "enum" in schema:
            return self._constants(schema, field, depths)
        if not schema:
            return any_value(ANY_DEPTH)
        return either(self._of_type(kind, schema, field, depths) for kind in _types(schema, field))

    def _constants(self, schema: Schema, field: str, depths: Depths) -> str | None:
        """Those values of `enum` or `const` that also match the keywords beside it about values of their type."""
        values, kinds = _values_of(schema, field), {TYPE_OF[name] for name in schema if name in TYPE_OF}
        for kind in sorted(kinds):
            own = {name: part for name, part in schema.items() if TYPE_OF.get(name) == kind}
            pattern = self.convert({**own, "type": kind}, field, depths)
            automaton = self._compile(pattern, field) if pattern is not None else None
            values = [
                value
                for value in values
                if not _is_of(value, kind)
                or (automaton is not None and automaton.accepts(json.dumps(value, ensure_ascii=False)))
            ]
        return either(constant(value) for value in values)

    def _matches(self, pattern: Any, name: str, field: str) -> bool:
        """Whether a pattern, which JSON Schema searches in a text, is in this name."""
        if not isinstance(pattern, str):
            raise BadInput(f"a pattern must be a string, got {pattern!r}", field)
        return self._compile(searched(pattern), field).accepts(name)

    def _compile(self, pattern: str, field: str) -> PatternAutomaton:
        if pattern not in self._compiled:
            self._compiled.add(pattern)
            self._count_pattern(field)
        try:
            return compile_pattern(pattern)
        except BadInput as error:
            raise BadInput(f"pattern {pattern!r}: {error.message}", field) from None

    def _count_pattern(self, field: str) -> None:
        """Raises: BadInput if it is one pattern too many."""
        self._num_patterns += 1
        if self._num_patterns > MAX_PATTERNS:
            raise BadInput(f"the schema has or needs more than {MAX_PATTERNS} patterns", field)

    def _of_type(self, kind: str, schema: Schema, field: str, depths: Mapping[str, int]) -> str | None:
        if kind in {"object", "array"}:
            convert = self._object if kind == "object" else self._array
            return convert(schema, field, depths)
        if kind == "string" and "pattern" in schema:
            self._count_pattern(field)
        if kind in SCALARS:
            return SCALARS[kind](schema, field)
        return "(?:true|false)" if kind == "boolean" else "null"

    def _resolve(self, reference: Any, field: str) -> Any:
        if isinstance(reference, str) and isinstance(self._root, Mapping):
            reference = reference.removeprefix(str(self._root.get("$id", "")).rstrip("#")) or "#"
        if not isinstance(reference, str) or not reference.startswith(("#/", "#")) or reference[1:2] not in {"", "/"}:
            raise BadInput(f"$ref must be # or begin with #/, got {reference!r}", field)
        found = self._root
        for name in unquote(reference[1:]).split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise BadInput(f"$ref {reference!r} refers to nothing", field)
        return found

    def _combined(self, schema: Schema, name: str, field: str, depths: Depths) -> str | None:
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
            check_disjoint([plain for plain, _ in plains], field)
        wholes = [(merged(plain, siblings, field, self._matches), deeper) for plain, deeper in plains]
        return either(self.convert(whole, f"{field}.{name}[{at}]", own) for at, (whole, own) in enumerate(wholes))

    def _plain(self, part: Any, field: str, depths: Depths) -> tuple[Any, Depths]:
        """A part without a reference, and the levels within it. A part that is too deep is false."""
        while isinstance(part, Mapping) and "$ref" in part:
            target, depth = self._resolve(part["$ref"], field), depths.get(part["$ref"], 0)
            if depth == MAX_DEPTH:
                return False, depths
            depths = {**depths, part["$ref"]: depth + 1}
            siblings = without_annotations({name: value for name, value in part.items() if name != "$ref"})
            part = merged(in_own_scope(target, field), siblings, field, self._matches) if siblings else target
        return part, depths

    def _array(self, schema: Schema, field: str, depths: Depths) -> str | None:
        schema = with_prefix_items(schema)
        least, most = count(schema, "minItems", field) or 0, count(schema, "maxItems", field)
        check_range(least, most, "minItems", field)
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
        if item is None:
            if least > len(head):
                return None
            return rf"\[{COMMA.join(head)}\]"
        more, limit = least - len(head), None if most is None else most - len(head)
        if head:
            return rf"\[{COMMA.join(head)}(?:{COMMA}{item}){times(more, limit)}\]"
        return rf"\[{listed(item, more, limit)}\]"

    def _object(self, schema: Schema, field: str, depths: Mapping[str, int]) -> str | None:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise BadInput("properties must be an object, and required a list", field)
        least, most = count(schema, "minProperties", field) or 0, count(schema, "maxProperties", field)
        others = schema.get("additionalProperties", True)
        if not properties and not required:
            value = self.convert(others, f"{field}.additionalProperties", depths)
            if least > 1 and value is not None:  # names of our own, as others might be equal
                if least > MAX_PROPERTIES:
                    raise BadInput(f"minProperties is supported up to {MAX_PROPERTIES}, got {least}", field)
                members = [(f'"key{i}"{COLON}{value}', True) for i in range(1, least + 1)]
                return rf"\{{{members_of(members)}\}}"
            return object_of(value, least, most) if value is not None else (None if least else r"\{\}")
        missing = {name: others for name in required if name not in properties}
        members = []
        for name, part in {**properties, **missing}.items():
            value = self.convert(part, f"{field}.{name}", depths)
            if value is not None:
                members.append((f"{constant(name)}{COLON}{value}", name in required))
            elif name in required:
                return None
        members = counted(members, least, most)
        if not least <= len(members) <= (len(members) if most is None else most):
            return None
        return rf"\{{{members_of(members)}\}}"


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


def _in_order(items: Schema, least: int, most: int | None, field: str) -> str | None:
    """An array of different values of a list, in its order."""
    values = dict.fromkeys(
        constant(value) for value in items["enum"] if any(_is_of(value, kind) for kind in _types(items, field))
    )
    if least > 1 or (most is not None and most < len(values)):
        raise BadInput("uniqueItems beside minItems above 1 or maxItems is not supported", field)
    if least > len(values):
        return None
    inner = members_of([(value, False) for value in values])
    return rf"\[{inner.removesuffix('?') if least else inner}\]"
