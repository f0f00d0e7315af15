"""Merges two JSON schemas into one that accepts only values valid under both.

It may accept fewer: of `multipleOf` 4 and 6, for example, the multiples of 24.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from shared.errors import BadInput
from shared.patterns.schema_keyword_names import assertions_of

Schema = Mapping[str, Any]
Matches = Callable[[Any, str, str], bool]  # whether a pattern matches a name within a field; raises BadInput

MAX_WAYS = 1_000  # alternatives of oneOf, and of anyOf after several are multiplied

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
    one, other = with_prefix_items(one), with_prefix_items(other)
    prefix = max(len(part.get("prefixItems", [])) for part in (one, other))
    found, others = (
        _padded(_with_additional_properties(*pair, field, matches), prefix) for pair in ((one, other), (other, one))
    )
    for name, value in others.items():
        found[name] = (
            _merge_keyword(name, found[name], value, field) if name in found and found[name] != value else value
        )
    return found


def without_properties(names: Iterable[str]) -> Any:
    """The schema of objects without these; of every value if there are none."""
    found = dict.fromkeys(sorted(names), False)
    return {"type": "object", "properties": found} if found else True


def with_prefix_items(schema: Schema) -> dict[str, Any]:
    """Rewrite a list of `items`, the syntax until draft 2019-09, as `prefixItems`."""
    if not isinstance(schema.get("items"), list):
        return dict(schema)
    rest = {name: value for name, value in schema.items() if name not in {"items", "additionalItems"}}
    further = {"items": schema["additionalItems"]} if "additionalItems" in schema else {}
    return {**rest, "prefixItems": schema["items"], **further}


def _padded(schema: dict[str, Any], prefix: int) -> dict[str, Any]:
    """Pad `prefixItems` to this number with copies of `items`, if the schema is about items at all."""
    own = schema.get("prefixItems", [])
    if len(own) == prefix or ("items" not in schema and not own):
        return schema
    return {**schema, "prefixItems": [*own, *[schema.get("items", True)] * (prefix - len(own))]}


def apart(parts: Sequence[Any], field: str) -> list[set[str]]:
    """For each part of oneOf, properties without which no value of it matches another part.

    Raises: BadInput if a value could match two of the parts all the same.
    """
    if len(parts) > MAX_WAYS:
        raise BadInput(f"oneOf may have {MAX_WAYS} parts, got {len(parts)}", field)
    found: list[set[str]] = [set() for _ in parts]
    for (at, one), (beside, other) in combinations(enumerate(parts), 2):
        if _types_disjoint(one, other) or _constants_disjoint(one, other):
            continue
        ones, others = (set(part.get("required", [])) if isinstance(part, Mapping) else set() for part in (one, other))
        if ones <= others or others <= ones:
            raise BadInput(
                "oneOf is supported if its parts differ in type, in required properties, or in one with const or enum; "
                "use anyOf",
                field,
            )
        found[at].add(min(others - ones))
        found[beside].add(min(ones - others))
    return found


def listed_types(schema: Schema) -> list[Any]:
    """The types that a schema names."""
    named = schema["type"]
    return list(named) if isinstance(named, list) else [named]


def _with_additional_properties(schema: Schema, other: Schema, field: str, matches: Matches) -> dict[str, Any]:
    """Rewrite `const` as `enum`, and apply `additionalProperties` to the properties that only `other` names."""
    schema = assertions_of(schema)
    if "const" in schema:
        values = [value for value in schema.get("enum", [schema["const"]]) if same(value, schema["const"])]
        schema = {name: value for name, value in schema.items() if name != "const"} | {"enum": values}
    additional = schema.get("additionalProperties", True)
    named, matched = other.get("properties", {}), other.get("patternProperties", {})
    if additional is True or not isinstance(named, Mapping):
        return schema
    own, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    if matched:
        schema = {**schema, "patternProperties": {**dict.fromkeys(matched, additional), **patterns}}
    further = [name for name in named if name not in own and not any(matches(key, name, field) for key in patterns)]
    return {**schema, "properties": {**dict.fromkeys(further, additional), **own}}


def same(one: Any, other: Any) -> bool:
    """Whether both are the same JSON value; to Python 1 equals true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _merge_keyword(name: str, one: Any, other: Any, field: str) -> Any:
    combine = _RULES.get(name)
    try:
        found = combine(one, other) if combine is not None else None
    except TypeError:  # values of the wrong type
        found = None
    if found is None:
        raise BadInput(f"two different {name} at once are not supported", field)
    return found


def _all_of(one: Any, other: Any) -> Any:
    return {"allOf": [one, other]}


def _common_types(one: Any, other: Any) -> Any:
    names = [set(listed_types({"type": each})) for each in (one, other)]
    wide = [each | ({"integer"} if "number" in each else set()) for each in names]
    both = wide[0] & wide[1]
    return sorted(both - ({"integer"} if "number" in both else set()))


def _properties(one: Any, other: Any) -> Any:
    return {**one, **{name: _all_of(one[name], part) if name in one else part for name, part in other.items()}}


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


_RULES: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(LOWER_BOUNDS, max),
    **dict.fromkeys(UPPER_BOUNDS, min),
    **dict.fromkeys(COMBINED_BY_ALL_OF, _all_of),
    "prefixItems": lambda one, other: [_all_of(a, b) for a, b in zip(one, other, strict=True)],
    "required": lambda one, other: [*one, *(name for name in other if name not in one)],
    "properties": _properties,
    "patternProperties": _properties,
    "dependentSchemas": _properties,
    "enum": lambda one, other: [value for value in one if any(same(value, each) for each in other)],
    "type": _common_types,
    "anyOf": lambda one, other: (
        [_all_of(a, b) for a in one for b in other] if len(one) * len(other) <= MAX_WAYS else None
    ),
    "allOf": lambda one, other: [*one, *other],
    "uniqueItems": lambda one, other: one or other,
    **dict.fromkeys(["pattern", "format"], lambda one, other: (*_tuple(one), *_tuple(other))),
    "multipleOf": lambda one, other: one * other if isinstance(one, int) and isinstance(other, int) else None,
}


def _types_disjoint(one: Any, other: Any) -> bool:
    kinds = [set(listed_types(part)) for part in (one, other) if isinstance(part, Mapping) and "type" in part]
    if len(kinds) < 2:
        return one is False or other is False
    if any("number" in kind for kind in kinds):
        kinds = [kind | ({"integer"} if "number" in kind else set()) for kind in kinds]
    return kinds[0].isdisjoint(kinds[1])


def _constants_disjoint(one: Any, other: Any) -> bool:
    def texts(own: Any) -> list[str] | None:
        if not isinstance(own, Mapping) or not ("const" in own or "enum" in own):
            return None
        return [json.dumps(value, sort_keys=True) for value in ([own["const"]] if "const" in own else own["enum"])]

    def values(part: Any) -> dict[str, list[str]]:
        found = {"": texts(part)}
        for name, own in part.get("properties", {}).items() if isinstance(part, Mapping) else ():
            if name in part.get("required", []):
                found[f".{name}"] = texts(own)
        return {name: each for name, each in found.items() if each is not None}

    ones, others = values(one), values(other)
    return any(set(ones[name]).isdisjoint(others[name]) for name in ones.keys() & others.keys())
