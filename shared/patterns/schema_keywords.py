"""The keywords of JSON schemas on which their values depend. All others are annotations, which are ignored."""

from collections.abc import Mapping
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
    """The keywords that instances depend on, as the present draft writes them, and `if` as a choice of two parts. Draft
    4 has true or false beside a bound; draft 3 has `required` in the property itself. Raises: BadInput naming a keyword
    of a wrong type."""
    found = {name: value for name, value in schema.items() if name in ASSERTIONS}
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and bound in found:
            found[exclusive] = found.pop(bound)
    if "contains" in found:
        found.setdefault("minContains", 1)
    if isinstance(found.get("required"), bool):
        del found["required"]
    for name, value in found.items():
        wanted, accepted = ACCEPTED.get(name, (object, ""))
        if not isinstance(value, wanted) or (value == [] and accepted == "a list of schemas"):
            raise BadInput(f"{name} must be {accepted}, got {value!r}", field)
    for name in ("required", "type"):
        if not all(isinstance(each, str) for each in found.get(name, [])):
            raise BadInput(f"{name} must be a list of strings, got {found[name]!r}", field)
    properties = found.get("properties", {}).items()
    needed = [name for name, part in properties if isinstance(part, Mapping) and part.get("required") is True]
    if needed:
        found["required"] = [*found.get("required", []), *needed]
    return _without_if(found)


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
