"""The form of a text that a client asks for: a JSON schema, a regular expression, a grammar, or a choice."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json

from shared.errors import BadInput
from shared.patterns.byte_automaton import WRITTEN
from shared.patterns.grammar import grammar_part
from shared.patterns.json_schema import choice_part, object_part, schema_part
from shared.patterns.parts import FormPart
from shared.patterns.schema_keywords import ASSERTIONS

Kind = Literal["schema", "object", "regex", "grammar", "choice"]
KINDS: Mapping[str, Kind] = {  # by the last word of a field, or the type of a response format
    "object": "object",
    "regex": "regex",
    "regex_schema": "regex",
    "pattern": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "ebnf": "grammar",
}


@dataclass(frozen=True, slots=True)
class Form:
    """A form that a client has given: the body's field, and its value. Equal forms have the same texts."""

    field: str
    kind: Kind
    given: Any = None  # a schema or its text; a pattern; a grammar; a list of texts

    def make(self, left_out: list[str]) -> FormPart | str:
        """The parts of its texts, or their pattern. `left_out` gets what is left out, by field. Raises: BadInput."""
        match self.kind:
            case "object":
                return object_part()
            case "choice":
                return choice_part(self.given)
            case "schema":
                return schema_part(self._schema(), self.field, left_out)
            case "grammar":
                return grammar_part(self.given)
        if not self.given:
            reason = "only the empty text has this form; leave the field out to have any text"
            raise BadInput(f"{self.field}: {reason}", self.field)
        return f"(?:{self.given})" if self.given.startswith(WRITTEN) else str(self.given)

    def _schema(self) -> Any:
        """The schema, also within OpenAI's object around it, which clients of TGI send as its value."""
        try:
            given = from_json(self.given) if isinstance(self.given, str) else self.given
        except ValueError as error:
            raise BadInput(f"{self.field} is not a JSON schema: {error}", self.field) from None
        is_around = isinstance(given, dict) and "schema" in given and ASSERTIONS.isdisjoint(given)
        return given["schema"] if is_around else given


def form_of(field: str, value: Any) -> Form:
    """The form that a field of the body gives."""
    return Form(field, KINDS.get(re.split(r"[._]", field)[-1], "schema"), value)
