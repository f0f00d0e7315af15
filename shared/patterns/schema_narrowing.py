"""Rewrites the keywords of a JSON schema that a pattern cannot express.

The rewritten schema accepts fewer values, and each of them is valid under the original. `if` is treated as true, the
items for `contains` come first, and beside keywords such as patternProperties an object has only the properties that
the schema names.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shared.errors import BadInput
from shared.patterns.gbnf import literal
from shared.patterns.json_scalars import count
from shared.patterns.schema_keyword_names import assertions_of
from shared.patterns.schema_merging import (
    TYPES,
    Matches,
    Schema,
    is_of,
    listed_types,
    with_prefix_items,
    without_properties,
)

UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
MAX_CONTAINED = 50  # items that an array must contain
DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")
PROPERTY_NAME_KEYWORDS = ("patternProperties", *DEPENDENCIES)


def narrowed(schema: dict[str, Any], field: str, matches: Matches) -> Any:
    """The schema without the keywords of _RULES. Raises: BadInput naming the field."""
    found: Any = schema
    for names, narrow in _RULES:
        if isinstance(found, Mapping) and not _keywords(found).isdisjoint(names):
            rest = {name: value for name, value in found.items() if name not in names}
            found = narrow(found, rest, field, matches)
    return found


def needs_narrowing(schema: Schema) -> bool:
    """Whether `narrowed` would change the schema."""
    return not _keywords(schema).isdisjoint(name for names, _ in _RULES for name in names)


def _keywords(schema: Schema) -> set[str]:
    """Without the keywords about keys, where the schema names no keys itself."""
    found = set(schema)
    if schema.get("properties") or schema.get("required") or not found.isdisjoint(DEPENDENCIES):
        return found
    return found - {"patternProperties"}


def in_own_scope(part: Any, field: str) -> Any:
    """A subschema of allOf, anyOf or oneOf without `unevaluated…`, which considers only the subschema's own keywords.

    Raises: BadInput if the subschema has subschemas itself.
    """
    if not isinstance(part, Mapping) or part.keys().isdisjoint(UNEVALUATED):
        return part
    if not part.keys().isdisjoint(("$ref", "allOf", "anyOf", "oneOf", "if")):
        name = next(name for name in UNEVALUATED if name in part)
        raise BadInput(f"{name} in a subschema with subschemas of its own is not supported", field)
    rest = {name: value for name, value in part.items() if name not in UNEVALUATED}
    return _unevaluated(part, rest)


def _condition(schema: Schema, rest: dict[str, Any], *_: object) -> Any:
    condition = schema.get("if", True)
    branch = schema.get("else", True) if condition is False else schema.get("then", True)
    if "if" not in schema:
        return rest
    return {"allOf": [rest, branch if condition is False else {"allOf": [condition, branch]}]}


def _not(schema: Schema, rest: dict[str, Any], field: str, *_: object) -> Any:
    return {"allOf": [rest, _outside(schema["not"], rest, field)]}


def _outside(refused: Any, rest: Schema, field: str) -> Any:
    """A schema of values of `rest` that are not valid under `refused`. Raises: BadInput if none is known."""
    if isinstance(refused, bool):
        return not refused
    if not isinstance(refused, Mapping):
        raise BadInput(f"not must be a schema, got {refused!r}", field)
    (name, value), *others = [*assertions_of(refused, field).items(), ("", None)]
    found: Any = None
    if name in {"const", "enum"}:
        found = _other_texts(value if name == "enum" else [value], rest)
    elif name == "type":
        names = set(listed_types({"type": value}))
        if names & {"integer", "number"}:
            names |= {"integer", "number"}  # JSON Schema has no type for the other numbers
        found = {"type": [kind for kind in TYPES if kind not in names]}
    elif name == "required" and value:
        found = without_properties([next((each for each in value if each not in rest.get("required", [])), value[0])])
    elif name == "anyOf":
        found = {"allOf": [_outside(each, rest, field) for each in value]}
    else:
        found = {"": False, "not": value, "pattern": {"pattern": rf"^(?![\s\S]*(?:{value}))"}}.get(name)
    if found is None or len(others) > 1:
        raise BadInput(
            "not is supported for type, required, pattern, anyOf, and strings or null of const or enum", field
        )
    return found


def _other_texts(values: list[Any], rest: Schema) -> Any:
    """Of values that are strings or null, among those of the types of `rest`."""
    texts = [literal(each) for each in values if isinstance(each, str)]
    kinds = listed_types(rest) if "type" in rest else ["string"] if texts else TYPES
    if any(is_of(each, kind) for each in values for kind in kinds if not isinstance(each, str | None)):
        return None
    found: dict[str, Any] = {"pattern": f"^(?!(?:{'|'.join(texts)})$)"} if texts else {}
    return {**found, "type": [kind for kind in kinds if kind != "null"]} if None in values else found


def _named_only(schema: Schema, rest: dict[str, Any], field: str, matches: Matches) -> Any:
    properties, required = dict(rest.get("properties", {})), list(rest.get("required", []))
    needed = {**schema.get("dependentRequired", {}), **schema.get("dependentSchemas", {})}
    needed.update(schema.get("dependencies", {}))
    extra: list[Any] = []
    for name in required:  # to which the loop appends
        need = needed.get(name, [])
        if isinstance(need, list):
            required += [each for each in need if each not in required]
        else:
            extra.append(need)
    for name in dict.fromkeys([*properties, *required]):
        part = properties.get(name, rest.get("additionalProperties", True))
        matching = [own for key, own in schema.get("patternProperties", {}).items() if matches(key, name, field)]
        if matching and name not in properties:
            part = True  # a name that a pattern matches is not an additional property
        part = {"allOf": [part, *matching]} if matching else part
        depends = name in needed and name not in required
        properties[name] = False if depends else part
    found = {**rest, "type": rest.get("type", "object"), "properties": properties, "required": required}
    if not properties:
        found["additionalProperties"] = False
    return {"allOf": [found, *extra]} if extra else found


def _unevaluated(schema: Schema, rest: dict[str, Any], *_: object) -> Any:
    """Apply `unevaluated…` to the properties and items that the schema does not describe."""
    rest = with_prefix_items(rest)
    for name, further in UNEVALUATED.items():
        if name in schema and further not in rest:
            rest[further] = schema[name]
    return rest


def _contains(schema: Schema, rest: dict[str, Any], field: str, *_: object) -> Any:
    """Have the first items match `contains`."""
    wanted, least = schema.get("contains", True), count({"minContains": 1, **schema}, "minContains", field) or 0
    if "contains" not in schema:
        least = 0
    if least > MAX_CONTAINED:
        raise BadInput(f"minContains is supported up to {MAX_CONTAINED}, got {least}", field)
    if "maxContains" in schema and "contains" in schema:
        raise BadInput("maxContains is not supported", field)
    prefix_items = rest.get("prefixItems", rest["items"] if isinstance(rest.get("items"), list) else [])
    if prefix_items and least:
        raise BadInput("contains beside prefixItems is not supported", field)
    if least:
        items = rest.get("items", True)
        rest["prefixItems"] = [{"allOf": [items, wanted]}] * least
        rest["minItems"] = max(least, count(rest, "minItems", field) or 0)
        rest.setdefault("type", "array")
    return rest


_RULES: list[tuple[tuple[str, ...], Callable[[Schema, dict[str, Any], str, Matches], Any]]] = [
    (("if", "then", "else"), _condition),
    (("not",), _not),
    (tuple(UNEVALUATED), _unevaluated),
    (("contains", "minContains", "maxContains"), _contains),
    (PROPERTY_NAME_KEYWORDS, _named_only),
]
