"""The bodies that clients send.

A field of OpenAI that is not supported is declared with the values that have no effect; any other value is refused by
name.
Lists fail at their first wrong item, as reporting a hundred thousand would block the event loop.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import AliasChoices, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from services.gateway.api.base_models import Lenient, unsupported, wrong_field
from services.gateway.api.other_fields import NEUTRAL_OF_PROMPTS
from services.gateway.api.plan import BodyPlan, BodyPlanner, WantedCompletion
from services.gateway.api.prompts import Prompt
from services.gateway.api.replies import ChatFormat, CompletionReplies, FimFormat, TextFormat
from services.gateway.api.text_forms import Form, vllm_forms
from services.gateway.api.tool_calls.call_syntax import Turn
from services.gateway.api.tool_calls.models import NamedTool, ToolCall, ToolChoice, Tools, check_choice
from services.gateway.api.tool_calls.use import ToolUse, UsableTool, call, turn
from shared.messages.requests import MAX_BLOCK_LENGTH, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS, Request

MAX_SLO_MS = 24 * 3600 * 1000
MAX_STOP_LENGTH = 1000  # characters
MAX_CHOICES = 128  # of one body: prompts times `n`
MAX_GRAMMAR_LENGTH = 100_000  # characters
MAX_KIND_LENGTH = 50  # characters of a part's type that a message repeats

Priority = Annotated[int, Field(ge=-100, le=100)]
SloMs = Annotated[float, Field(gt=0, le=MAX_SLO_MS, allow_inf_nan=False)]
Threshold = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
BlockLength = Annotated[int, Field(ge=1, le=MAX_BLOCK_LENGTH)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1000, fail_fast=True)]
Grammar = Annotated[str, Field(max_length=MAX_GRAMMAR_LENGTH)]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class ContentPart(Lenient):
    text: str


class TextPart(ContentPart):
    type: Literal["text"]


def check_parts(content: Any, kinds: Sequence[str] = ("text",)) -> Any:
    """Check that a list has only text parts, whose type is one of `kinds`."""
    if not isinstance(content, list):
        return content
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds or not isinstance(part.get("text"), str):
            form = f"{{'type': '{kinds[0]}', 'text': '...'}}"
            given = (
                f", not of the type {kind[:MAX_KIND_LENGTH]!r}" if isinstance(kind, str) and kind not in kinds else ""
            )
            raise unsupported(f"part {i} must be of the form {form}{given}; only text is supported")
    return content


def joined(content: str | Sequence[ContentPart] | None) -> str:
    """The text of a content; empty if there is none."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


TextOrParts = Annotated[str | list[TextPart], BeforeValidator(check_parts)]


def _prompts(prompt: Any) -> Any:
    """Check a prompt, or a list of prompts; a list of one is unwrapped."""
    if not isinstance(prompt, list) or not prompt or type(prompt[0]) is int:
        return _prompt(prompt)
    if len(prompt) > MAX_CHOICES:
        raise unsupported(f"has {len(prompt)} prompts; the maximum is {MAX_CHOICES}")
    checked = [_prompt(each) for each in prompt]
    return checked[0] if len(checked) == 1 else checked


def _prompt(prompt: Any) -> Any:
    if isinstance(prompt, str) or (isinstance(prompt, list) and all(type(token) is int for token in prompt)):
        return prompt
    raise unsupported("must be a string, a list of token ids, or a list of such prompts")


STRING_AS_LIST = BeforeValidator(
    lambda stop: [stop] if isinstance(stop, str) else stop,
    json_schema_input_type=str | Annotated[list[str], Field(max_length=4)],
)


class Message(Lenient):
    """A message of a conversation: a text, calls of tools, or the result of a call."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextOrParts | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _require_content(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise wrong_field("tool_calls", "is only allowed in a message of the assistant")
        if self.content is None and not self.tool_calls:
            raise wrong_field("content", "is required, except beside tool_calls")
        return self

    def turn(self) -> Turn:
        """As chat templates have it."""
        calls = [call(each.id, each.function.name, each.function.arguments) for each in self.tool_calls or ()]
        return turn(self.role, joined(self.content), calls, self.tool_call_id)


class StreamOptions(Lenient):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's: the usage so far in every chunk with text
    include_obfuscation: Literal[False] = False


class SchemaFormat(Lenient):
    name: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None  # a text always matches its schema
    description: str | None = None


class ResponseFormat(Lenient):
    """The form of the text; text_forms.py makes a pattern of it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @model_validator(mode="after")
    def _require_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            text = "json_schema is required with type json_schema, and only allowed there"
            raise PydanticCustomError("unsupported_field", "{text}", {"name": "json_schema", "text": text})
        return self


class StructuredOutputs(Lenient):
    """vLLM's forms of a text."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "structural_tag": (),
        "whitespace_pattern": (),
        "json_object": (False,),
        "disable_any_whitespace": (False,),
        "disable_additional_properties": (False,),
    }

    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None  # a schema
    regex: str | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None


class TextForms(Lenient):
    """The fields with which a client asks for a text of a form, at most one of them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None  # vLLM's older names
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None

    def forms(self) -> list[Form]:
        """The given forms."""
        wanted, structured = self.response_format, self.structured_outputs
        found = list[Form]()
        if wanted is not None and wanted.json_schema is not None:
            found.append(Form("response_format.json_schema.schema", "schema", wanted.json_schema.schema_))
        elif wanted is not None and wanted.type == "json_object":
            found.append(Form("response_format", "object"))
        if structured is not None:
            own = structured.json_, structured.regex, structured.choice, structured.grammar
            found += vllm_forms(*own, "structured_outputs.")
        guided = self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar
        return [*found, *vllm_forms(*guided, "guided_")]

    def labels(self) -> list[str]:
        """The texts of a choice, without repetitions; empty if the form is another one."""
        structured = self.structured_outputs
        labels = self.guided_choice or (structured.choice if structured is not None else None)
        return list(dict.fromkeys(labels or []))


class ServedBody(Lenient):
    """Fields of every body that the model answers."""

    model: str
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None  # None: 0, greedy
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    user: str | None = None
    service_tier: str | None = None  # names an SLO and a priority: serving_fields.py

    # vLLM's
    ignore_eos: bool | None = None
    stop_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None
    ) = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None

    # DiLaServe's own
    slo_ms: SloMs | None = None
    priority: Priority | None = None
    min_threshold: Threshold | None = None
    edit_threshold: Threshold | None = None
    block_length: BlockLength | None = None

    @property
    def effort(self) -> tuple[str, str | None]:
        """The field that names a quality floor (serving_fields.py), and its value."""
        raise NotImplementedError

    def passed(self) -> dict[str, Any]:
        """The given fields that a request has, most of them under the same names."""
        given = {name: getattr(self, name) for name in PASSED} | {"slo_s": self.slo_ms and self.slo_ms / 1000}
        return {name: value for name, value in given.items() if value is not None}

    async def plan(self, planner: BodyPlanner) -> BodyPlan:
        """The plan to answer this body. Raises: BadInput naming the wrong field; as Conversations.find."""
        raise NotImplementedError


PASSED = [name for name in Request.__struct_fields__ if name in ServedBody.model_fields]


class CompletionBody(ServedBody, TextForms):
    """Fields of both kinds of completion."""

    prompt_field: ClassVar[str] = "prompt"

    max_tokens: Annotated[int, Field(ge=1)] | None = None  # more than the model has room for is cut to it
    stream_options: StreamOptions | None = None
    stop: Annotated[list[StopString], Field(max_length=4, fail_fast=True), STRING_AS_LIST] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None  # choices for each prompt
    reasoning_effort: str | None = None
    canvas: bool | None = None  # DiLaServe's: whether the stream also has each step's tokens and guesses
    template: str | None = None  # DiLaServe's: the text, in which <mask:N> is a hole of N tokens

    # Accepted only with values that have no effect
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None

    @property
    def effort(self) -> tuple[str, str | None]:
        return "reasoning_effort", self.reasoning_effort

    @property
    def limit(self) -> tuple[str, int | None]:
        """The field that limits the tokens of the text, and its value."""
        return "max_tokens", self.max_tokens

    @property
    def given_suffix(self) -> str | None:
        """The text after the completion."""
        return None

    @property
    def alternatives(self) -> int | None:
        """The number of the most probable tokens that the reply has at each position; None: no log-probabilities."""
        return None

    def wanted(self, prompts: Sequence[Prompt], tools: ToolUse) -> WantedCompletion:
        """The wishes of this body."""
        return WantedCompletion(
            prompts=prompts,
            prompt_field=self.prompt_field,
            n=self.n or 1,
            limit=self.limit,
            passed=self.passed(),
            tools=tools,
            stop=self.stop or (),
            forms=self.forms(),
            labels=self.labels(),
            suffix=self.given_suffix,
            template=self.template,
            alternatives=self.alternatives,
            canvas=bool(self.canvas),
        )

    def replies(
        self, planner: BodyPlanner, form: TextFormat, echoes: Sequence[str], request_id: str, created_s: float
    ) -> CompletionReplies:
        """The writer of the reply. `echoes`: the text before that of each choice."""
        options = self.stream_options or StreamOptions()
        head: dict[str, Any] = {"id": form.id_prefix + request_id, "created": int(created_s), "model": self.model}
        if self.service_tier is not None:
            head["service_tier"] = "default" if self.service_tier == "auto" else self.service_tier
        return CompletionReplies(
            form,
            head,
            planner.text,
            alternatives=self.alternatives,
            echoes=echoes,
            choices_per_prompt=self.n or 1,
            include_usage=options.include_usage,
            continuous_usage=options.continuous_usage_stats,
        )

    @model_validator(mode="after")
    def _refuse_with_template(self) -> Self:
        wants_logprobs = self.alternatives is not None
        given = {"suffix": self.given_suffix, "logprobs": wants_logprobs, "max_tokens": self.max_tokens == 0}
        wrong = next((name for name, is_given in given.items() if is_given), None)
        if self.template is not None and wrong is not None:
            text = f"{wrong} is not supported with template"
            raise PydanticCustomError("unsupported_field", "{text}", {"name": wrong, "text": text})
        return self

    @field_validator("stream_options", "canvas")
    @classmethod
    def _require_stream(cls, value: StreamOptions | bool | None, info: ValidationInfo) -> StreamOptions | bool | None:
        if value and not info.data.get("stream"):
            raise unsupported("is only allowed with stream: true")
        return value


def usable(tools: Tools | None) -> list[UsableTool]:
    """The tools of a chat."""
    functions = [tool.function for tool in tools or ()]
    return [
        UsableTool(f"tools[{at}].function.parameters", each.name, each.description, each.parameters, each.strict)
        for at, each in enumerate(functions)
    ]


class ChatBody(CompletionBody):
    """POST /v1/chat/completions."""

    prompt_field: ClassVar[str] = "messages"

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    logprobs: bool | None = None  # of each token of the text
    # With `logprobs`: the number of alternatives to each token
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None  # None: auto
    parallel_tool_calls: bool | None = None  # false: at most one call

    functions: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: Literal["none", "auto"] | None = None
    audio: None = None
    modalities: list[Literal["text"]] | None = None

    @property
    def alternatives(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    async def plan(self, planner: BodyPlanner) -> BodyPlan:
        tools = ToolUse.of(planner.syntax, usable(self.tools), *self._choice(), self.parallel_tool_calls)
        wanted = self.wanted([tools.chat([message.turn() for message in self.messages])], tools)

        def replies(request_id: str, created_s: float) -> CompletionReplies:
            return self.replies(planner, ChatFormat(tools, request_id), [""] * wanted.n, request_id, created_s)

        return await planner.plan(wanted, replies)

    def _choice(self) -> tuple[str | None, str | None]:
        """As the arguments of `ToolUse.of`."""
        choice = self.tool_choice
        return (None, choice.function.name) if isinstance(choice, NamedTool) else (choice, None)

    @model_validator(mode="after")
    def _require_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            text = "top_logprobs is only allowed with logprobs: true"
            raise PydanticCustomError("unsupported_field", "{text}", {"name": "top_logprobs", "text": text})
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        check_choice([tool.function.name for tool in self.tools or ()], *self._choice())
        return self

    @property
    def limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return super().limit


class TextBody(CompletionBody):
    """POST /v1/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_OF_PROMPTS
    reply_format: ClassVar[type[TextFormat]] = TextFormat

    prompt: Annotated[
        str | list[int] | list[str] | list[list[int]],
        BeforeValidator(_prompts, json_schema_input_type=str | list[int] | list[str] | list[list[int]]),
    ]

    max_tokens: Annotated[int, Field(ge=0)] | None = None  # 0: only with `echo`; the prompt alone comes back
    echo: bool | None = None  # the prompt's text before the completion
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None  # of each token; alternatives of each
    best_of: Literal[1] | None = None
    suffix: str | None = None  # the text after the completion, which then has at most `max_tokens`

    def _prompts(self) -> list[Prompt]:
        several = isinstance(self.prompt, list) and any(not isinstance(each, int) for each in self.prompt[:1])
        return cast("list[Prompt]", self.prompt if several else [self.prompt])

    async def plan(self, planner: BodyPlanner) -> BodyPlan:
        prompts = self._prompts()
        wanted = self.wanted(prompts, ToolUse(planner.syntax))

        def replies(request_id: str, created_s: float) -> CompletionReplies:
            echoes = [self._echo(prompt, planner) for prompt in prompts for _ in range(wanted.n)]
            return self.replies(planner, self.reply_format(), echoes, request_id, created_s)

        return await planner.plan(wanted, replies)

    def _echo(self, prompt: Prompt, planner: BodyPlanner) -> str:
        """The prompt's text before the completion, if the client wants it; otherwise empty."""
        if not self.echo:
            return ""
        return prompt if isinstance(prompt, str) else planner.text.decode(cast("list[int]", prompt))

    @property
    def given_suffix(self) -> str | None:
        return self.suffix or None

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @model_validator(mode="after")
    def _refuse_prompt_logprobs(self) -> Self:
        if self.echo and self.logprobs is not None:
            text = "logprobs is not supported with echo: a diffusion model gives no log-likelihood of a prompt"
            raise PydanticCustomError("unsupported_field", "{text}", {"name": "logprobs", "text": text})
        return self

    @model_validator(mode="after")
    def _require_text(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            text = "max_tokens must be at least 1; 0 is only allowed with echo: true"
            raise PydanticCustomError("unsupported_field", "{text}", {"name": "max_tokens", "text": text})
        return self

    @model_validator(mode="after")
    def _limit_choices(self) -> Self:
        if len(self._prompts()) * (self.n or 1) > MAX_CHOICES:
            text = f"n times the number of prompts is above {MAX_CHOICES}"
            raise PydanticCustomError("unsupported_field", "{text}", {"name": "n", "text": text})
        return self


class FimBody(TextBody):
    """POST /v1/fim/completions, as Mercury and Mistral have it."""

    reply_format: ClassVar[type[TextFormat]] = FimFormat

    prompt: str
    template: None = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63, validation_alias=AliasChoices("seed", "random_seed"))] = (
        None  # `random_seed` is Mistral's name
    )
