"""The form of a text that a client asks for: a JSON schema, a regular expression, a grammar, or a choice."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json

from shared.errors import BadInput
from shared.patterns.grammar import grammar_pattern
from shared.patterns.json_schema import choice_part, object_part, schema_part
from shared.patterns.parts import FormPart

Kind = Literal["schema", "object", "regex", "grammar", "choice"]


@dataclass(frozen=True, slots=True)
class Form:
    """A form that a client has given: the body's field, and its value. Equal forms have the same texts."""

    field: str
    kind: Kind
    given: Any = None  # a schema or its text; a pattern; a grammar; a list of texts

    def make(self, left_out: list[str]) -> FormPart | str:
        """The parts of its texts, or their pattern. `left_out` gets the fields of what is left out. Raises: BadInput
        naming the field."""
        try:
            match self.kind:
                case "object":
                    return object_part()
                case "choice":
                    return choice_part(self.given)
                case "schema":
                    schema = from_json(self.given) if isinstance(self.given, str) else self.given
                    return schema_part(schema, self.field, left_out)
                case "regex":
                    pattern = self.given
                case "grammar":
                    pattern = grammar_pattern(self.given)
        except ValueError as error:
            raise BadInput(f"{self.field} is not a JSON schema: {error}", self.field) from None
        if not pattern:
            raise BadInput(
                f"{self.field}: only the empty text has this form; leave the field out to have any text", self.field
            )
        return str(pattern)


def vllm_forms(
    schema: str | dict[str, object] | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    prefix: str,
) -> Iterator[Form]:
    """vLLM's forms, whose fields begin with `prefix`."""
    if schema is not None:
        yield Form(f"{prefix}json", "schema", schema)
    if regex is not None:
        yield Form(f"{prefix}regex", "regex", regex)
    if choice is not None:
        yield Form(f"{prefix}choice", "choice", choice)
    if grammar is not None:
        yield Form(f"{prefix}grammar", "grammar", grammar)
