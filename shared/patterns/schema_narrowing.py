"""Replaces keywords that no pattern can express by others, so that fewer values match, all of them instances.

A condition always holds, the first items of an array are those that it must contain, and where patterns describe an
object's properties, it has only those that the schema names.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shared.errors import BadInput
from shared.patterns.json_scalars import count
from shared.patterns.schema_merging import Matches, Schema, listed_types, merged, with_prefix_items

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
UNEVALUATED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
MAX_CONTAINED = 50  # items that an array must contain
NAMED_ONLY = ("patternProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas")


def narrowed(schema: dict[str, Any], field: str, matches: Matches) -> Any:
    """Without these keywords. Raises: BadInput naming the field."""
    found: Any = schema
    for names, narrow in _RULES:
        if isinstance(found, Mapping) and not found.keys().isdisjoint(names):
            rest = {name: value for name, value in found.items() if name not in names}
            found = narrow(found, rest, field, matches)
    return found


def in_own_scope(part: Any, field: str) -> Any:
    """A part beside others, whose keywords on what is not evaluated see the part alone. Raises: BadInput."""
    if not isinstance(part, Mapping) or part.keys().isdisjoint(UNEVALUATED):
        return part
    if not part.keys().isdisjoint(("$ref", "allOf", "anyOf", "oneOf", "if")):
        raise BadInput(
            f"{next(name for name in UNEVALUATED if name in part)} in a part of parts is not supported", field
        )
    rest = {name: value for name, value in part.items() if name not in UNEVALUATED}
    return _unevaluated(part, rest)


def _condition(schema: Schema, rest: dict[str, Any], *_: object) -> Any:
    condition = schema.get("if", True)
    branch = schema.get("else", True) if condition is False else schema.get("then", True)
    if "if" not in schema:
        return rest
    return {"allOf": [rest, branch if condition is False else {"allOf": [condition, branch]}]}


def _not(schema: Schema, rest: dict[str, Any], field: str, matches: Matches) -> Any:
    refused = schema["not"]
    if refused is False:
        return rest
    if refused is True or refused == {}:
        return False
    if not isinstance(refused, Mapping) or set(refused) != {"type"}:
        raise BadInput("not is not supported, but for a type", field)
    names = set(listed_types(refused))
    if names & {"integer", "number"}:
        names |= {"integer", "number"}  # the numbers that are not integers are no type
    kinds = [kind for kind in TYPES if kind not in names]
    return merged(rest, {"type": kinds}, field, matches)


def _named_only(schema: Schema, rest: dict[str, Any], field: str, matches: Matches) -> Any:
    properties, required = dict(rest.get("properties", {})), list(rest.get("required", []))
    needed = {**schema.get("dependentRequired", {}), **schema.get("dependentSchemas", {})}
    needed.update(schema.get("dependencies", {}))
    extra: list[Any] = []
    for name in required:  # which grows
        need = needed.get(name, [])
        if isinstance(need, list):
            required += [each for each in need if each not in required]
        else:
            extra.append(need)
    for name in dict.fromkeys([*properties, *required]):
        part = properties.get(name, rest.get("additionalProperties", True))
        matching = [own for key, own in schema.get("patternProperties", {}).items() if matches(key, name, field)]
        if matching and name not in properties:
            part = True  # further properties are those that no pattern matches
        part = {"allOf": [part, *matching]} if matching else part
        depends = name in needed and name not in required
        allowed = _is_name(name, schema.get("propertyNames", True), field, matches)
        properties[name] = part if allowed and not depends else False
    found = {**rest, "type": rest.get("type", "object"), "properties": properties, "required": required}
    if not properties:
        found["additionalProperties"] = False
    return {"allOf": [found, *extra]} if extra else found


def _is_name(name: str, schema: Any, field: str, matches: Matches) -> bool:
    """Whether a property may have this name."""
    if isinstance(schema, bool):
        return schema
    unknown = set(schema) - {"type", "pattern", "minLength", "maxLength", "enum", "const", "format"}
    if unknown:
        raise BadInput(f"propertyNames with {min(unknown)} is not supported", field)
    return (
        "string" in listed_types({"type": "string", **schema})
        and schema.get("minLength", 0) <= len(name) <= schema.get("maxLength", len(name))
        and name in schema.get("enum", [name])
        and name == schema.get("const", name)
        and ("pattern" not in schema or matches(schema["pattern"], name, field))
    )


def _unevaluated(schema: Schema, rest: dict[str, Any], *_: object) -> Any:
    """All named properties and items are evaluated, so the keywords are about further ones."""
    rest = with_prefix_items(rest)
    for name, further in UNEVALUATED.items():
        if name in schema and further not in rest:
            rest[further] = schema[name]
    return rest


def _contains(schema: Schema, rest: dict[str, Any], field: str, *_: object) -> Any:
    """The first items are such as it must contain."""
    wanted, least = schema.get("contains", True), count({"minContains": 1, **schema}, "minContains", field) or 0
    if "contains" not in schema:
        least = 0
    if least > MAX_CONTAINED:
        raise BadInput(f"minContains is supported up to {MAX_CONTAINED}, got {least}", field)
    if "maxContains" in schema and "contains" in schema:
        raise BadInput("maxContains is not supported", field)
    before = rest.get("prefixItems", rest["items"] if isinstance(rest.get("items"), list) else [])
    if before and least:
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
    (NAMED_ONLY, _named_only),
]
NARROWED = frozenset(name for names, _ in _RULES for name in names)
