"""Draws the random JSON schemas of `experiments.random_schemas`, once, before its first run.

pip install hypothesis==6.98.15 hypothesis-jsonschema==0.23.1 && python -m experiments.draw_schemas

hypothesis-jsonschema draws instances of JSON Schema's draft-07 meta-schema, whose references to itself are expanded to
DEPTH levels. Keywords about other documents are left out, as random references refer to nothing.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis_jsonschema import from_schema  # type: ignore[import-not-found]
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from experiments.random_schemas import SCHEMAS

SEED, NUMBER, DEPTH = 500, 500, 1
OTHER_DOCUMENTS = ("$id", "$schema", "$ref", "definitions")


def meta_schema(depth: int) -> Any:
    """The meta-schema, in which parts have at most `depth` levels of parts."""
    whole = deepcopy(Draft7Validator.META_SCHEMA)
    definitions = whole.pop("definitions")
    for name in OTHER_DOCUMENTS:
        whole["properties"].pop(name, None)
        whole.pop(name, None)

    def expanded(part: Any) -> Any:
        if isinstance(part, Mapping):
            reference = part.get("$ref")
            if reference == "#":
                return meta_schema(depth - 1) if depth else {"type": "boolean"}
            if reference is not None:
                return expanded(definitions[reference.removeprefix("#/definitions/")])
            return {name: expanded(value) for name, value in part.items() if name != "default"}
        return [expanded(each) for each in part] if isinstance(part, list) else part

    return expanded(whole)


def main() -> None:
    """Write the schemas, a line each."""
    found: dict[str, None] = {}

    @seed(SEED)
    @settings(
        max_examples=2 * NUMBER,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(from_schema(meta_schema(DEPTH)))
    def draw(schema: Any) -> None:
        if schema not in (True, False, {}):
            found.setdefault(json.dumps(schema))

    draw()
    SCHEMAS.write_text("".join(f"{line}\n" for line in list(found)[:NUMBER]))


if __name__ == "__main__":
    main()
