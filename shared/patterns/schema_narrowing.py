"""Rewrites the keywords of a JSON schema that a pattern cannot express.

The rewritten schema accepts fewer values, and each of them is valid under the original. The items for `contains` come
first.
"""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from shared.errors import BadInput
from shared.patterns.schema_keywords import as_key, assertions_of, count
from shared.patterns.schema_merging import TYPES, Schema, is_of, listed_types, without_properties

UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
MAX_CONTAINED = 50  # items that an array must contain
MAX_COPIES = 200  # of an object's properties: each schema of dependentSchemas doubles them


def narrowed(schema: dict[str, Any], field: str, left_out: list[str]) -> Any:
    """The schema without the keywords of _RULES; the same object if it has none. `left_out` gets the fields of
    properties that are left out. Raises: BadInput naming the field."""
    found: Any = schema
    for names, narrow in _RULES:
        if isinstance(found, Mapping) and not found.keys().isdisjoint(names):
            rest = {name: value for name, value in found.items() if name not in names}
            found = narrow(found, rest, field, left_out)
    return found


def in_own_scope(part: Any, field: str) -> Any:
    """A subschema of allOf, anyOf or oneOf without `unevaluated…`, which considers only the subschema's own keywords.

    Raises: BadInput if the subschema has subschemas itself.
    """
    if not isinstance(part, Mapping) or part.keys().isdisjoint(UNEVALUATED):
        return part
    part = assertions_of(part, field)
    if not part.keys().isdisjoint(("$ref", "allOf", "anyOf", "oneOf")):
        name = next(name for name in UNEVALUATED if name in part)
        raise BadInput(f"{name} in a subschema with subschemas of its own is not supported", field)
    rest = {name: value for name, value in part.items() if name not in UNEVALUATED}
    return _unevaluated(part, rest)


def _not(schema: Schema, rest: dict[str, Any], field: str, *_: object) -> Any:
    return {"allOf": [rest, _outside(schema["not"], rest, field)]}


def _outside(refused: Any, rest: Schema, field: str) -> Any:
    """A schema of values of `rest` that are not valid under `refused`. Raises: BadInput if none is known."""
    if isinstance(refused, bool):
        return not refused
    if not isinstance(refused, Mapping):
        raise BadInput(f"not must be a schema, got {refused!r}", field)
    rules = assertions_of(refused, field)
    if len(rules) != 1:  # it is enough to break one of them
        return {"anyOf": [{"not": {name: value}} for name, value in rules.items()]} if rules else False
    [(name, value)] = rules.items()
    found = _breaking(name, value, rest, field)
    if found is None:
        supported = "const, enum, type, required, properties, pattern, anyOf, allOf and not"
        limits = "const and enum without arrays and objects, and properties that the schema itself names"
        raise BadInput(f"not is supported for {supported}; of these only {limits}", field)
    return found


def _breaking(name: str, value: Any, rest: Schema, field: str) -> Any:
    """A schema of values of `rest` that break one rule; None if none is known."""
    found: Any = None
    match name:
        case "enum":
            found = _other_values(value, rest)
        case "type":
            names, numbers = set(listed_types({"type": value})), {"integer", "number"}
            names |= numbers if names & numbers else set()  # JSON Schema has no type for the other numbers
            found = {"type": [kind for kind in TYPES if kind not in names]}
        case "required":
            found = {"anyOf": [without_properties([each]) for each in value]} if value else False
        case "properties":  # those that the schema names, so that none counts as evaluated by this rule alone
            broken = {each: {"not": part} for each, part in value.items() if each in rest.get("properties", {})}
            ways = [{"type": "object", "required": [each], "properties": {each: part}} for each, part in broken.items()]
            found = {"anyOf": ways} if ways else None
        case "pattern":
            found = {"type": "string", "pattern": rf"^(?![\s\S]*(?:{value}))"}
        case "anyOf":
            found = {"allOf": [_outside(each, rest, field) for each in value]}
        case "allOf":
            found = {"anyOf": [{"not": each} for each in value]}
        case "not":
            found = value
    return found


def _other_values(values: list[Any], rest: Schema) -> Any:
    """A schema of the other values that `rest` lists, or else of its types; None for values that are arrays or
    objects."""
    if "enum" in rest:
        keys = set(map(as_key, values))
        return {"enum": [each for each in rest["enum"] if as_key(each) not in keys]}
    texts = [re.escape(each) for each in values if isinstance(each, str)]
    numbers = sorted({each for each in values if isinstance(each, int | float) and not isinstance(each, bool)})
    between = [
        {name: end for name, end in (("exclusiveMinimum", low), ("exclusiveMaximum", high)) if end is not None}
        for low, high in pairwise([None, *numbers, None])
    ]
    ways: dict[str, list[dict[str, Any]]] = {
        "string": [{"pattern": f"^(?!(?:{'|'.join(texts)})$)"} if texts else {}],
        "number": between,
        "integer": between,
        "boolean": [{"enum": [flag for flag in (True, False) if all(each is not flag for each in values)]}],
        "null": [{}] if None not in values else [],
    }
    kinds = listed_types(rest) if "type" in rest else ["string"] if texts else TYPES
    if any(is_of(each, kind) for each in values for kind in kinds if kind not in ways):
        return None
    found = [{"type": kind, **way} for kind in kinds for way in ways.get(kind, [{}])]
    return {"anyOf": found} if found else False


def _with_dependencies(schema: Schema, rest: dict[str, Any], field: str, left_out: list[str]) -> Any:
    """The schema for each property as a choice: with this property, or without it."""
    dependent = schema["dependentSchemas"]
    parts: list[Any] = [rest]
    copies = 2 * len({*rest.get("properties", {}), *dependent})
    for name, part in dependent.items():
        without, own = {"properties": {name: False}}, {"required": [name]}
        if name in rest.get("required", []):
            parts.append(part)
        elif isinstance(part, bool):
            parts.append(part or without)
        elif [*assertions_of(part, field)] == ["required"]:
            parts.append({"dependentRequired": {name: part["required"]}})
        elif copies <= MAX_COPIES:
            parts.append({"anyOf": [without, {"allOf": [own, part]}]})
            copies *= 2
        else:
            parts.append(without)
            left_out.append(f"{field}.{name}")
    return {"allOf": parts}


def _unevaluated(schema: Schema, rest: dict[str, Any], *_: object) -> Any:
    """Apply `unevaluated…` to the properties and items that the schema does not describe."""
    for name, further in UNEVALUATED.items():
        if name in schema and further not in rest:
            rest[further] = schema[name]
    return rest


def _contains(schema: Schema, rest: dict[str, Any], field: str, *_: object) -> Any:
    """Have the first items match `contains`."""
    if "contains" not in schema:
        return rest
    wanted = schema["contains"]
    # `assertions_of` has written the default of minContains, 1
    least, most = count(schema, "minContains", field) or 0, count(schema, "maxContains", field)
    if least > MAX_CONTAINED:
        raise BadInput(f"minContains is supported up to {MAX_CONTAINED}, got {least}", field)
    if not least and most is None:
        return rest
    if rest.get("prefixItems"):
        raise BadInput("contains beside prefixItems is not supported", field)
    items = rest.get("items", True)
    if most is not None:
        rest["items"] = {"allOf": [items, {"not": wanted}]}
    if least:
        rest["prefixItems"] = [{"allOf": [items, wanted]}] * least
        rest["minItems"] = max(least, count(rest, "minItems", field) or 0)
    return {"type": "array", **rest} if most is None or least <= most else False


_RULES: list[tuple[tuple[str, ...], Callable[[Schema, dict[str, Any], str, list[str]], Any]]] = [
    (("not",), _not),
    (tuple(UNEVALUATED), _unevaluated),
    (("contains", "minContains", "maxContains"), _contains),
    (("dependentSchemas",), _with_dependencies),
]
