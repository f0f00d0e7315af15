"""Merges two JSON schemas into one that accepts only values valid under both.

It may accept fewer: of `multipleOf` 4 and 6, for example, their product 24, not 12.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shared.errors import BadInput
from shared.patterns.schema_keywords import as_key, as_tuple, assertions_of, common_values

Schema = Mapping[str, Any]
# Whether a pattern matches a name. Raises: BadInput, which names the field, its last argument
Matches = Callable[[Any, str, str], bool]

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
TYPE_OF_PYTHON = {
    dict: "object",
    list: "array",
    str: "string",
    float: "number",
    int: "integer",
    bool: "boolean",
    type(None): "null",
}
MAX_WAYS = 1_000  # parts of oneOf, and of an anyOf that combines the parts of two

LOWER_BOUNDS = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"]
UPPER_BOUNDS = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"]
COMBINED_BY_ALL_OF = ["items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames"]


def merged(one: Any, other: Any, field: str, matches: Matches) -> Any:
    """A schema that accepts only values valid under both. Raises: BadInput if keywords cannot be combined."""
    for plain, rest in ((one, other), (other, one)):
        if plain is False:
            return False
        if plain is True:
            return rest
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        wrong = other if isinstance(one, Mapping) else one
        raise BadInput(f"a schema must be an object, true or false, got {wrong!r}", field)
    one, other = assertions_of(one, field), assertions_of(other, field)
    prefix = max(len(part.get("prefixItems", [])) for part in (one, other))
    found, others = (
        _padded(_with_additional_properties(*pair, field, matches), prefix) for pair in ((one, other), (other, one))
    )
    for name, value in others.items():
        if name not in found:
            found[name] = value
        elif found[name] != value or as_key(found[name]) != as_key(value):  # to Python, true is 1
            found[name] = _merge_keyword(name, found[name], value, field)
    return found


def without_properties(names: Iterable[str]) -> Any:
    """The schema of objects that lack these properties."""
    return {"type": "object", "properties": dict.fromkeys(sorted(names), False)}


def _padded(schema: dict[str, Any], prefix: int) -> dict[str, Any]:
    """Pad `prefixItems` to `prefix` entries with copies of `items`, or of true, if the schema has one of the two."""
    own = schema.get("prefixItems", [])
    if len(own) == prefix or ("items" not in schema and not own):
        return schema
    return {**schema, "prefixItems": [*own, *[schema.get("items", True)] * (prefix - len(own))]}


def listed_types(schema: Schema) -> list[Any]:
    """The types that a schema names."""
    named = schema["type"]
    return list(named) if isinstance(named, list) else [named]


def _with_additional_properties(schema: dict[str, Any], other: Schema, field: str, matches: Matches) -> dict[str, Any]:
    """Apply `additionalProperties` to the properties that only `other` names."""
    additional = schema.get("additionalProperties", True)
    named, matched = other.get("properties", {}), other.get("patternProperties", {})
    if additional is True:
        return schema
    own, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    if matched:
        schema = {**schema, "patternProperties": {**dict.fromkeys(matched, additional), **patterns}}
    further = [name for name in named if name not in own and not any(matches(key, name, field) for key in patterns)]
    return {**schema, "properties": {**dict.fromkeys(further, additional), **own}}


def is_of(value: Any, kind: str) -> bool:
    """Whether a value is of a type."""
    is_whole = isinstance(value, float) and value.is_integer()
    own = "integer" if is_whole else TYPE_OF_PYTHON[type(value)]
    return kind == own or (kind == "number" and own == "integer")


def _merge_keyword(name: str, one: Any, other: Any, field: str) -> Any:
    combine = _RULES.get(name)
    try:
        found = combine(one, other) if combine is not None else None
    except TypeError:  # values of the wrong type
        found = None
    if found is None:
        also = ", of which each if is one" if name == "anyOf" else ""
        raise BadInput(f"two different {name} at once are not supported{also}", field)
    return found


def _all_of(one: Any, other: Any) -> Any:
    both = [part["allOf"] if isinstance(part, Mapping) and [*part] == ["allOf"] else [part] for part in (one, other)]
    return {"allOf": [*both[0], *both[1]]}


def _common_types(one: Any, other: Any) -> Any:
    names = [set(listed_types({"type": each})) for each in (one, other)]
    wide = [each | ({"integer"} if "number" in each else set()) for each in names]
    both = wide[0] & wide[1]
    return sorted(both - ({"integer"} if "number" in both else set()))


def _properties(one: Any, other: Any) -> Any:
    return {**one, **{name: _all_of(one[name], part) if name in one else part for name, part in other.items()}}


_RULES: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(LOWER_BOUNDS, max),
    **dict.fromkeys(UPPER_BOUNDS, min),
    **dict.fromkeys(COMBINED_BY_ALL_OF, _all_of),
    "prefixItems": lambda one, other: [_all_of(a, b) for a, b in zip(one, other, strict=True)],
    "required": lambda one, other: [*one, *(name for name in other if name not in one)],
    "properties": _properties,
    "patternProperties": _properties,
    "dependentSchemas": _properties,
    "dependentRequired": lambda one, other: {
        name: [*one.get(name, []), *other.get(name, [])] for name in {**one, **other}
    },
    "enum": common_values,
    "type": _common_types,
    "anyOf": lambda one, other: (
        [_all_of(a, b) for a in one for b in other] if len(one) * len(other) <= MAX_WAYS else None
    ),
    "allOf": lambda one, other: [*one, *other],
    "not": lambda one, other: {"anyOf": [one, other]},
    "uniqueItems": lambda one, other: one or other,
    **dict.fromkeys(["pattern", "format"], lambda one, other: (*as_tuple(one), *as_tuple(other))),
    "multipleOf": lambda one, other: one * other if isinstance(one, int) and isinstance(other, int) else None,
}
