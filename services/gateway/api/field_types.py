"""The types of the fields of bodies. The limits of a request on the bus are declared in its message alone."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

from services.gateway.api.base_models import Lenient, unsupported, wrong_field
from services.gateway.api.form_compiler import KINDS, Form, form_of
from shared.messages.requests import MAX_BIASED_TOKENS, MAX_OUTPUT_TOKENS, MAX_STOPS, Request

MAX_SLO_MS = 24 * 3600 * 1000
MAX_CHOICES = 128  # of one body: prompts times `n`
MAX_METADATA = 16
# Variables of chat templates that are not options
OF_CONVERSATION = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"}
LIMITS = ("gt", "ge", "lt", "le", "min_length", "max_length")  # as msgspec and pydantic name them
_ON_BUS = {field.name: field.type for field in msgspec.inspect.type_info(Request).fields}  # type: ignore[attr-defined]


def as_on_bus(name: str, part: str | None = None, **more: Any) -> FieldInfo:
    """The limits of a request's field. `part`: of its items, keys or values, as msgspec names it; `more`: others."""
    kind = _ON_BUS[name]
    kind = kind.types[0] if isinstance(kind, msgspec.inspect.UnionType) else kind  # without None
    kind = getattr(kind, part) if part is not None else kind
    limits = {limit: getattr(kind, limit, None) for limit in LIMITS}
    made: FieldInfo = Field(**{limit: value for limit, value in limits.items() if value is not None}, **more)
    return made


def also(name: str, other: str) -> Any:
    """A field that clients also send under another name."""
    return Field(validation_alias=AliasChoices(name, other))


def at_most(count: int) -> BeforeValidator:
    """Refuses an object with more items before each is checked."""

    def check(items: Any) -> Any:
        if isinstance(items, dict) and len(items) > count:
            raise unsupported(f"must have at most {count} items")
        return items

    return BeforeValidator(check)


def check_template_options(options: dict[str, Any]) -> dict[str, Any]:
    """Raises: PydanticCustomError for a variable of the chat template that other fields give."""
    given = next((name for name in options if name in OF_CONVERSATION), None)
    if given is not None:
        raise unsupported(f"must not have {given!r}, which the request's other fields give")
    return options


def check_prompts(prompt: Any) -> Any:
    """Check a prompt, or a list of prompts; a list of one is unwrapped."""
    several = isinstance(prompt, list) and prompt and type(prompt[0]) is not int
    prompts: list[Any] = prompt if several else [prompt]
    if len(prompts) > MAX_CHOICES:
        raise unsupported(f"has {len(prompts)} prompts; the maximum is {MAX_CHOICES}")
    for each in prompts:
        if not isinstance(each, str) and not (isinstance(each, list) and all(type(token) is int for token in each)):
            raise unsupported("must be a string, a list of token ids, or a list of such prompts")
    return prompts[0] if len(prompts) == 1 else prompts


Priority = Annotated[int, as_on_bus("priority")]
SloMs = Annotated[float, Field(gt=0, le=MAX_SLO_MS, allow_inf_nan=False)]
Penalty = Annotated[float, as_on_bus("presence_penalty", allow_inf_nan=False)]
Share = Annotated[float, as_on_bus("top_p", allow_inf_nan=False)]
Threshold = Annotated[float, as_on_bus("min_threshold", allow_inf_nan=False)]
BlockLength = Annotated[int, as_on_bus("block_length")]
StopTokens = Annotated[
    list[Annotated[int, as_on_bus("stop_token_ids", "item_type")]], as_on_bus("stop_token_ids", fail_fast=True)
]
StopStrings = Annotated[
    list[Annotated[str, as_on_bus("stop", "item_type", min_length=1)]], as_on_bus("stop", fail_fast=True)
]
STRING_AS_LIST = BeforeValidator(
    lambda stop: [stop] if isinstance(stop, str) else stop,
    json_schema_input_type=str | Annotated[list[str], Field(max_length=MAX_STOPS)],
)
LogitBias = Annotated[
    dict[
        Annotated[int, as_on_bus("logit_bias", "key_type", strict=False)],  # names in JSON are texts
        Annotated[float, as_on_bus("logit_bias", "value_type", allow_inf_nan=False)],
    ],
    at_most(MAX_BIASED_TOKENS),
]
TopLogprobs = Annotated[int, as_on_bus("top_logprobs")]
# -1: as many as the model has room for
NO_LIMIT = BeforeValidator(lambda limit: MAX_OUTPUT_TOKENS if type(limit) is int and limit == -1 else limit)
MaxTokens = Annotated[int, as_on_bus("max_tokens"), NO_LIMIT]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=MAX_METADATA),
    at_most(MAX_METADATA),
]
TemplateOptions = Annotated[dict[str, Any], AfterValidator(check_template_options)]
Prompts = Annotated[str | list[int] | list[str] | list[list[int]], BeforeValidator(check_prompts)]


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
