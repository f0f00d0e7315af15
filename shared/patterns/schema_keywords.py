"""The keywords of JSON schemas on which their values depend. All others are annotations, which are ignored."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shared.errors import BadInput

KEYWORDS = {  # by the type of the values that they are about
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    "array": "items additionalItems prefixItems minItems maxItems uniqueItems contains minContains maxContains "
    "unevaluatedItems",
    "object": "properties required additionalProperties minProperties maxProperties patternProperties propertyNames "
    "dependencies dependentRequired dependentSchemas unevaluatedProperties",
}
TYPE_OF = {keyword: kind for kind, names in KEYWORDS.items() for keyword in names.split()}
UNSUPPORTED = ("$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy", "formatMinimum", "formatMaximum")
TYPE_INDEPENDENT = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const", "type", "if", "then", "else", "not")
ASSERTIONS = frozenset({*TYPE_OF, *TYPE_INDEPENDENT, *UNSUPPORTED})  # others are annotations, as JSON Schema has it
ACCEPTED = {  # the values of keywords
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), (Mapping, "an object of schemas")),
    **dict.fromkeys(("dependencies", "dependentRequired"), (Mapping, "an object")),
    **dict.fromkeys(("required", "enum", "prefixItems"), (list, "a list")),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), (list, "a list of schemas")),
    **dict.fromkeys(("$ref", "pattern", "format"), (str | tuple, "a string")),  # tuple: of several, merged
    "type": (str | list, "the name of a type, or a list of names"),
    "uniqueItems": (bool, "true or false"),
}


class NoValue(BadInput):
    """No value keeps all rules of a schema."""


def assertions_of(schema: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The keywords that instances depend on, as the present draft writes them, `if` as a choice of two parts, and
    `const` as `enum`. Raises: BadInput naming a keyword of a wrong type."""
    found = _of_present_draft({name: value for name, value in schema.items() if name in ASSERTIONS})
    for name, value in found.items():
        wanted, accepted = ACCEPTED.get(name, (object, ""))
        if not isinstance(value, wanted) or (value == [] and accepted == "a list of schemas"):
            raise BadInput(f"{name} must be {accepted}, got {value!r}", field)
    named = [(name, found.get(name, [])) for name in ("required", "type")]
    for name, names in (*named, *found.get("dependentRequired", {}).items()):
        if not all(isinstance(each, str) for each in names):
            raise BadInput(f"{name} must be a list of strings, got {names!r}", field)
    if (values := listed_values(found)) is not None:
        found["enum"] = values
        found.pop("const", None)
    properties = found.get("properties", {}).items()
    needed = [name for name, part in properties if isinstance(part, Mapping) and part.get("required") is True]
    if needed:
        found["required"] = [*found.get("required", []), *needed]
    return _without_if(found)


def _of_present_draft(found: dict[str, Any]) -> dict[str, Any]:
    """Until draft 2019-09 `items` could be a list; draft 4 has true or false beside a bound, and draft 3 in `required`
    of the property itself."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and bound in found:
            found[exclusive] = found.pop(bound)
    if isinstance(found.get("items"), list):
        found["prefixItems"] = found.pop("items")
        if "additionalItems" in found:
            found["items"] = found["additionalItems"]
    found.pop("additionalItems", None)
    if isinstance(needs := found.get("dependencies"), Mapping):
        lists = {name: need for name, need in needs.items() if isinstance(need, list)}
        schemas = {name: need for name, need in needs.items() if name not in lists}
        found["allOf"] = [*found.get("allOf", []), {"dependentRequired": lists, "dependentSchemas": schemas}]
        del found["dependencies"]
    if "contains" in found:
        found.setdefault("minContains", 1)
    if isinstance(found.get("required"), bool):
        del found["required"]
    return found


def _without_if(found: dict[str, Any]) -> dict[str, Any]:
    then, otherwise = found.pop("then", True), found.pop("else", True)
    if "if" in found:
        condition = found.pop("if")
        ways = [{"allOf": [condition, then]}, {"allOf": [{"not": condition}, otherwise]}]
        found["allOf"] = [*found.get("allOf", []), {"anyOf": ways}]
    return found


def count(schema: Mapping[str, Any], name: str, field: str) -> int | None:
    """A keyword that is a number of things. Raises: BadInput if it is another value."""
    value = schema.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value % 1 != 0 or value < 0:
        raise BadInput(f"{name} must be a whole number from 0 on, got {value!r}", field)
    return int(value)


def limits(schema: Mapping[str, Any], of: str, field: str) -> tuple[int, int | None]:
    """The keywords with `min` and `max` before `of`, such as Length. Raises: BadInput if no value fits."""
    least, most = count(schema, f"min{of}", field) or 0, count(schema, f"max{of}", field)
    if most is not None and least > most:
        raise NoValue(f"min{of} {least} is above the maximum {most}", field)
    return least, most


def as_tuple(value: Any) -> tuple[Any, ...]:
    """The values of a keyword that has one, or several that are merged."""
    return value if isinstance(value, tuple) else (value,)


def listed_values(schema: Any) -> list[Any] | None:
    """The only values that `enum` and `const` allow; none if the schema is false. None: it has neither of them."""
    if not isinstance(schema, Mapping):
        return [] if schema is False else None
    listed = schema["enum"] if isinstance(schema.get("enum"), list) else None
    if "const" not in schema:
        return listed
    return [schema["const"]] if listed is None else common_values(listed, [schema["const"]])


def common_values(one: Sequence[Any], other: Iterable[Any]) -> list[Any]:
    """The values of one list that are in the other too."""
    keys = set(map(as_key, other))
    return [value for value in one if as_key(value) in keys]


def as_key(value: Any) -> str:
    """Equal JSON values have the same text: 1.0 that of 1, but true another one, although Python calls it equal."""
    return json.dumps(json.loads(json.dumps(value), parse_float=_number), sort_keys=True)


def _number(text: str) -> float:
    return int(value) if (value := float(text)).is_integer() else value
