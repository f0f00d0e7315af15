"""The fields with which a client asks for a text of a form; text_forms.py makes patterns of them."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from services.gateway.api.base_models import Lenient, wrong_field
from services.gateway.api.text_forms import Form, form_of

MAX_GRAMMAR_LENGTH = 100_000  # characters

Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1000, fail_fast=True)]
Grammar = Annotated[str, Field(max_length=MAX_GRAMMAR_LENGTH)]


class SchemaFormat(Lenient):
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None  # a text always matches its schema
    description: str | None = None


class ResponseFormat(SchemaFormat):
    """The form of the text. A schema may be at `json_schema`, as OpenAI's chats have it, at `schema`, as the other APIs
    and llama.cpp, Together and Fireworks have it, or at TGI's `value`."""

    usual_place: ClassVar[str] = "schema"

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None
    value: dict[str, Any] | None = None

    def forms(self, field: str) -> list[Form]:
        """The forms of the text; empty: any text. `field`: that of this format."""
        found = [form_of(f"{field}.{place}", schema) for place, schema in self._schemas().items()]
        return found or ([Form(field, "object")] if self.type == "json_object" else [])

    def _schemas(self) -> dict[str, dict[str, Any]]:
        """The schemas by their places."""
        nested = self.json_schema.schema_ if self.json_schema is not None else None
        places = {"json_schema.schema": nested, "schema": self.schema_, "value": self.value}
        return {place: schema for place, schema in places.items() if schema is not None}

    @model_validator(mode="after")
    def _require_schema(self) -> Self:
        schemas = self._schemas()
        if self.type == "json_schema" and not schemas:
            raise wrong_field(self.usual_place, "is required with type json_schema")
        if self.type == "text" and schemas:
            raise wrong_field(next(iter(schemas)), "is only allowed with type json_schema or json_object")
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
        """The given forms."""
        found = self.response_format.forms("response_format") if self.response_format is not None else []
        others = (name for name in TextForms.model_fields if name not in {"response_format", "structured_outputs"})
        given = {name: getattr(self, name) for name in others}
        if self.structured_outputs is not None:
            own = StructuredOutputs.model_fields
            given |= {f"structured_outputs.{name.rstrip('_')}": getattr(self.structured_outputs, name) for name in own}
        return [*found, *(form_of(name, value) for name, value in given.items() if value is not None)]

    def labels(self) -> list[str]:
        """The texts of a choice, without repetitions; empty if the form is another one."""
        structured = self.structured_outputs
        labels = self.guided_choice or (structured.choice if structured is not None else None)
        return list(dict.fromkeys(labels or []))
