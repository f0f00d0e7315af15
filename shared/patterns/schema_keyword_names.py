"""The keywords of JSON schemas on which their values depend. All others are annotations, which are ignored."""

from collections.abc import Mapping
from typing import Any

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


def assertions_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that instances depend on. Draft 4's true or false beside a bound becomes the number of today."""
    found = {name: value for name, value in schema.items() if name in ASSERTIONS}
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and bound in found:
            found[exclusive] = found.pop(bound)
    return found
