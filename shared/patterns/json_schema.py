"""JSON schemas as patterns: each text that matches is JSON that the schema accepts.

Objects have the properties that the schema names, in its order, and at most one space after each comma and colon. A
keyword that no pattern can express is refused by name. Schemas that refer to themselves are expanded to MAX_DEPTH
levels.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from shared.errors import BadInput
from shared.patterns.json_scalars import CHARACTER, check_range, constant, count, integer, literal, number, string

MAX_DEPTH = 3  # of a reference within itself
MAX_PARTS = 5_000
MAX_STRING_PATTERNS = 16
ANY_DEPTH = 2  # of arrays and objects within a value of any kind
COMMA, COLON = ",[ ]?", ":[ ]?"
KEY = f'"{CHARACTER}*"'
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
    }
)
KEYWORDS = {
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    "array": "items additionalItems prefixItems minItems maxItems uniqueItems",
    "object": "properties required additionalProperties minProperties maxProperties",
}
TYPE_OF = {keyword: kind for kind, names in KEYWORDS.items() for keyword in names.split()}
COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const", "type")

Schema = Mapping[str, Any]
SCALARS: Mapping[str, Callable[[Schema, str], str]] = {"string": string, "number": number, "integer": integer}


def schema_pattern(schema: Any, field: str = "schema") -> str:
    """The pattern of a JSON schema. Raises: BadInput naming the field with what is not supported."""
    pattern = _Converter(schema).convert(schema, field, {})
    if pattern is None:
        raise BadInput(f"{field} has no instance of at most {MAX_DEPTH} levels", field)
    return pattern


def object_pattern() -> str:
    """The pattern of any JSON object, whose values have at most ANY_DEPTH levels."""
    return _map(_any_value(ANY_DEPTH), 0, None)


def choice_pattern(choices: Sequence[str]) -> str:
    """The pattern of these texts."""
    return "|".join(f"(?:{literal(choice)})" for choice in choices)


class _Converter:
    """Converts the parts of one schema. None is the pattern of a part without instances."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts = self._string_patterns = 0  # converted so far

    def convert(self, schema: Any, field: str, depths: Mapping[str, int]) -> str | None:
        """`depths`: the levels of each reference around this part."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadInput(f"the schema has more than {MAX_PARTS} parts, with those of each reference", field)
        if schema is True or schema == {}:
            return _any_value(ANY_DEPTH)
        if schema is False:
            return None
        if not isinstance(schema, Mapping):
            raise BadInput(f"a schema must be an object, true or false, got {schema!r}", field)
        schema = {
            name: value for name, value in schema.items() if name not in ANNOTATIONS and not name.startswith("x-")
        }
        unknown = next((name for name in schema if name not in TYPE_OF and name not in COMBINING), None)
        if unknown is not None:
            raise BadInput(f"{unknown} is not supported", field)
        if "const" in schema or "enum" in schema:
            return _constants(schema, field)
        if "$ref" in schema:
            return self._reference(schema, field, depths)
        for name in ("allOf", "anyOf", "oneOf"):
            if name in schema:
                return self._combined(schema, name, field, depths)
        return _either(self._of_type(kind, schema, field, depths) for kind in _types(schema, field))

    def _of_type(self, kind: str, schema: Schema, field: str, depths: Mapping[str, int]) -> str | None:
        if kind in {"object", "array"}:
            convert = self._object if kind == "object" else self._array
            return convert(schema, field, depths)
        self._string_patterns += kind == "string" and "pattern" in schema
        if self._string_patterns > MAX_STRING_PATTERNS:  # each takes a process
            raise BadInput(f"the schema has more than {MAX_STRING_PATTERNS} keywords pattern", field)
        if kind in SCALARS:
            return SCALARS[kind](schema, field)
        return "(?:true|false)" if kind == "boolean" else "null"

    def _reference(self, schema: Schema, field: str, depths: Mapping[str, int]) -> str | None:
        reference = schema["$ref"]
        target = self._resolve(reference, field)
        depth = depths.get(reference, 0)
        if depth == MAX_DEPTH:
            return None
        siblings = {name: value for name, value in schema.items() if name != "$ref"}
        merged = _merged(target, siblings, field) if siblings else target
        return self.convert(merged, field, {**depths, reference: depth + 1})

    def _resolve(self, reference: Any, field: str) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise BadInput(f"$ref must begin with #, got {reference!r}", field)
        found = self._root
        for name in reference[1:].split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise BadInput(f"$ref {reference!r} refers to nothing", field)
        return found

    def _combined(self, schema: Schema, name: str, field: str, depths: Mapping[str, int]) -> str | None:
        parts = schema[name]
        siblings: Schema = {key: value for key, value in schema.items() if key != name}
        if not isinstance(parts, list) or not parts:
            raise BadInput(f"{name} must be a list of schemas", field)
        if name == "allOf":
            for part in parts:
                siblings = _merged(self._plain(part, field), siblings, field)
            return self.convert(siblings, field, depths)
        if name == "oneOf":
            _check_apart([self._plain(part, field) for part in parts], field)
        merged = [_merged(self._plain(part, field), siblings, field) if siblings else part for part in parts]
        return _either(self.convert(part, f"{field}.{name}[{at}]", depths) for at, part in enumerate(merged))

    def _plain(self, part: Any, field: str) -> Any:
        """A part whose references are resolved, as far as they are no further parts'."""
        while isinstance(part, Mapping) and set(part) - ANNOTATIONS == {"$ref"}:
            part = self._resolve(part["$ref"], field)
        return part

    def _array(self, schema: Schema, field: str, depths: Mapping[str, int]) -> str | None:
        if schema.get("uniqueItems"):
            raise BadInput("uniqueItems is not supported", field)
        if isinstance(schema.get("items"), list):  # as until draft 2019-09
            others = schema.get("additionalItems", True)
            schema = {**schema, "prefixItems": schema["items"], "items": others}
        least, most = count(schema, "minItems", field) or 0, count(schema, "maxItems", field)
        check_range(least, most, "minItems", field)
        first = [
            self.convert(item, f"{field}.prefixItems[{at}]", depths)
            for at, item in enumerate(schema.get("prefixItems", []))
        ]
        if None in first:
            raise BadInput("an item of prefixItems has no instance", field)
        head = [item for item in first if item is not None][: most if most is not None else None]
        if head and least < len(head):
            least = len(head)  # fewer are possible too, but never needed
        item = self.convert(schema.get("items", True), f"{field}.items", depths) if most != len(head) else None
        if item is None:
            if least > len(head):
                return None
            return rf"\[{COMMA.join(head)}\]"
        more, limit = least - len(head), None if most is None else most - len(head)
        if head:
            return rf"\[{COMMA.join(head)}(?:{COMMA}{item}){_times(more, limit)}\]"
        return rf"\[{_listed(item, more, limit)}\]"

    def _object(self, schema: Schema, field: str, depths: Mapping[str, int]) -> str | None:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise BadInput("properties must be an object, and required a list", field)
        least, most = count(schema, "minProperties", field) or 0, count(schema, "maxProperties", field)
        others = schema.get("additionalProperties", True)
        if not properties and not required:
            value = self.convert(others, f"{field}.additionalProperties", depths)
            if least > 1:
                raise BadInput("minProperties above 1 is not supported, as names may be equal", field)
            return _map(value, least, most) if value is not None else (None if least else r"\{\}")
        missing = {name: others for name in required if name not in properties}
        members: list[tuple[str, bool]] = []
        for name, part in {**properties, **missing}.items():
            value = self.convert(part, f"{field}.{name}", depths)
            if value is not None:
                members.append((f"{constant(name)}{COLON}{value}", name in required))
            elif name in required:
                return None
        if least > sum(is_required for _, is_required in members) or (most is not None and most < len(members)):
            raise BadInput("minProperties and maxProperties are not supported beside properties", field)
        return rf"\{{{_members(members)}\}}"


def _is_annotation(name: str) -> bool:
    return name in ANNOTATIONS or name.startswith("x-")


def _types(schema: Schema, field: str) -> list[str]:
    """The types of a schema's values; that of its keywords if it names none."""
    named = schema.get("type")
    listed = [named] if isinstance(named, str) else named
    if listed is None:  # values of other types match too, but this one is meant
        listed = [next(kind for kind in TYPES if kind in {TYPE_OF[name] for name in schema})]
    unknown = [kind for kind in listed if kind not in TYPES] if isinstance(listed, list) else [named]
    if unknown or not listed:
        raise BadInput(f"type must be among {', '.join(TYPES)}, got {named!r}", field)
    return list(listed)


def _constants(schema: Schema, field: str) -> str | None:
    values = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(values, list):
        raise BadInput("enum must be a list", field)
    others = set(schema) - {"const", "enum", "type"}
    if others:
        raise BadInput(f"{min(others)} beside enum or const is not supported", field)
    kinds = _types(schema, field) if "type" in schema else TYPES
    return _either(constant(value) for value in values if any(_is_of(value, kind) for kind in kinds))


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


def _merged(one: Any, other: Schema, field: str) -> Schema:
    """Both schemas at once. Raises: BadInput if they give one keyword different values."""
    if not isinstance(one, Mapping):
        raise BadInput("true and false beside other keywords are not supported", field)
    merged = {name: value for name, value in one.items() if not _is_annotation(name)}
    for name, value in other.items():
        if name not in merged or merged[name] == value:
            merged[name] = value
        elif name == "required":
            merged[name] = [*merged[name], *(each for each in value if each not in merged[name])]
        elif name == "properties" and all(merged[name].get(key, part) == part for key, part in value.items()):
            merged[name] = {**merged[name], **value}
        elif not _is_annotation(name):
            raise BadInput(f"two different {name} at once are not supported", field)
    for part in (one, other):
        if part.get("additionalProperties") is False and part.get("properties") != merged.get("properties"):
            raise BadInput("additionalProperties: false beside properties of another part is not supported", field)
    return merged


def _check_apart(parts: Iterable[Any], field: str) -> None:
    """Raises: BadInput if a value could match two of the parts of oneOf."""
    for one, other in combinations(parts, 2):
        if not (_types_apart(one, other) or _constants_apart(one, other)):
            raise BadInput(
                "oneOf is supported if its parts differ in type, or in a required property with const or enum; "
                "use anyOf",
                field,
            )


def _types_apart(one: Any, other: Any) -> bool:
    kinds = [
        set([part["type"]] if isinstance(part["type"], str) else part["type"])
        for part in (one, other)
        if isinstance(part, Mapping) and "type" in part
    ]
    if len(kinds) < 2:
        return False
    if any("number" in kind for kind in kinds):
        kinds = [kind | ({"integer"} if "number" in kind else set()) for kind in kinds]
    return kinds[0].isdisjoint(kinds[1])


def _constants_apart(one: Any, other: Any) -> bool:
    def values(part: Any) -> dict[str, list[str]]:
        found = {}
        for name, own in part.get("properties", {}).items() if isinstance(part, Mapping) else ():
            if isinstance(own, Mapping) and ("const" in own or "enum" in own) and name in part.get("required", []):
                allowed = [own["const"]] if "const" in own else own["enum"]
                found[name] = [json.dumps(value, sort_keys=True) for value in allowed]
        return found

    ones, others = values(one), values(other)
    return any(set(ones[name]).isdisjoint(others[name]) for name in ones.keys() & others.keys())


def _any_value(depth: int) -> str:
    scalars = [KEY, number({}, ""), "true", "false", "null"]
    if not depth:
        return f"(?:{'|'.join(scalars)})"
    inner = _any_value(depth - 1)
    return f"(?:{'|'.join([*scalars, _bracketed(inner), _map(inner, 0, None)])})"


def _bracketed(item: str) -> str:
    return rf"\[{_listed(item, 0, None)}\]"


def _map(value: str, least: int, most: int | None) -> str:
    """An object of any keys."""
    return rf"\{{{_listed(f'{KEY}{COLON}{value}', least, most)}\}}"


def _listed(item: str, least: int, most: int | None) -> str:
    """Items with commas between them. The last one is written apart, so that the automaton has its states once."""
    if most == 0:
        return ""
    some = f"(?:{item}{COMMA}){_times(max(least - 1, 0), None if most is None else most - 1)}{item}"
    return some if least else f"(?:{some})?"


def _times(least: int, most: int | None) -> str:
    return "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"


def _members(members: Sequence[tuple[str, bool]]) -> str:
    """Members in their order, of which some are required."""
    anchor = next((at for at, (_, is_required) in enumerate(members) if is_required), None)
    if anchor is None:  # any one may be the first
        ways = [member + _following(members[at + 1 :]) for at, (member, _) in enumerate(members)]
        return f"(?:{'|'.join(ways)})?" if ways else ""
    before = "".join(f"(?:{member}{COMMA})?" for member, _ in members[:anchor])
    return before + members[anchor][0] + _following(members[anchor + 1 :])


def _following(members: Sequence[tuple[str, bool]]) -> str:
    return "".join(f"(?:{COMMA}{member}){'' if is_required else '?'}" for member, is_required in members)


def _either(ways: Iterable[str | None]) -> str | None:
    possible = [way for way in ways if way is not None]
    return f"(?:{'|'.join(possible)})" if possible else None
