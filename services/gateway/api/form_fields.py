"""The fields with which a client asks for a text of a form; form_compiler.py makes patterns of them."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from services.gateway.api.base_models import Lenient, wrong_field
from services.gateway.api.field_types import as_on_bus
from services.gateway.api.form_compiler import KINDS, Form, form_of

MAX_GRAMMAR_LENGTH = 100_000  # characters

Choices = Annotated[
    list[Annotated[str, as_on_bus("choices", "item_type")]], as_on_bus("choices", min_length=1, fail_fast=True)
]
Grammar = Annotated[str, Field(max_length=MAX_GRAMMAR_LENGTH)]


class SchemaFormat(Lenient):
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | str | None = None  # not used: a text always matches its schema; LM Studio's examples have "true"
    description: str | None = None


class ResponseFormat(SchemaFormat):
    """The form of the text. A schema may be at `json_schema`, as OpenAI's chats have it, at `schema`, as the other APIs
    and llama.cpp, Together and Fireworks have it, or at TGI's `value`. The other types are those of these servers,
    TensorRT-LLM and LMDeploy."""

    usual_place: ClassVar[str] = "schema"  # which an error names if no schema is given

    type: Literal["text", "json_object", "json_schema", "json", "regex", "regex_schema", "grammar", "ebnf"]
    json_schema: SchemaFormat | None = None
    value: dict[str, Any] | str | None = None
    regex: str | None = None
    pattern: str | None = None
    regex_schema: str | None = None
    grammar: Grammar | None = None
    ebnf: Grammar | None = None

    def forms(self, field: str) -> list[Form]:
        """The forms of the text; empty: any text. `field`: that of this format."""
        kind = KINDS.get(self.type, "schema")
        found = [Form(f"{field}.{place}", kind, given) for place, given in self._given().items()]
        return found or ([Form(field, "object")] if self.type == "json_object" else [])

    def _given(self) -> dict[str, Any]:
        """The schemas, patterns and grammars by their places."""
        nested = self.json_schema.schema_ if self.json_schema is not None else None
        own = {name: getattr(self, name) for name in ("value", "pattern", "regex", "regex_schema", "grammar", "ebnf")}
        places = {"json_schema.schema": nested, "schema": self.schema_, **own}
        return {place: given for place, given in places.items() if given is not None}

    @model_validator(mode="after")
    def _require_form(self) -> Self:
        given = self._given()
        if not given and self.type not in {"text", "json_object"}:
            raise wrong_field(
                self.type if self.type in KINDS else self.usual_place, f"is required with type {self.type}"
            )
        for place, value in given.items():
            if self.type == "text":
                raise wrong_field(place, "is only allowed with another type than text")
            if place != "value" and KINDS.get(place, "schema") != KINDS.get(self.type, "schema"):
                raise wrong_field(place, f"is not allowed with type {self.type}")
            if self.type in KINDS and not isinstance(value, str):
                raise wrong_field(place, f"must be a string with type {self.type}")
        return self


class ChatResponseFormat(ResponseFormat):
    usual_place: ClassVar[str] = "json_schema"


class StructuredOutputs(Lenient):
    """vLLM's forms of a text."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "structural_tag": (),
        "whitespace_pattern": (),
        "disable_any_whitespace": (False,),
        "disable_additional_properties": (False,),
    }

    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None  # a schema
    regex: str | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    json_object: Annotated[bool | None, AfterValidator(lambda wanted: wanted or None)] = None


class TextForms(Lenient):
    """The fields with which a client asks for a text of a form, at most one of them."""

    response_format: ChatResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None  # vLLM's older names
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None
    json_schema: str | dict[str, Any] | None = None  # names of SGLang and llama.cpp
    regex: str | None = None
    ebnf: Grammar | None = None
    grammar: Grammar | None = None

    def forms(self) -> list[Form]:
        found = self.response_format.forms("response_format") if self.response_format is not None else []
        others = (name for name in TextForms.model_fields if name not in {"response_format", "structured_outputs"})
        given = {name: getattr(self, name) for name in others}
        if self.structured_outputs is not None:
            own = StructuredOutputs.model_fields
            given |= {f"structured_outputs.{name.rstrip('_')}": getattr(self.structured_outputs, name) for name in own}
        return [*found, *(form_of(name, value) for name, value in given.items() if value is not None)]
