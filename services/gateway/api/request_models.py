"""The bodies that clients send. For fields that they do not declare see base_models.py.

Lists fail at their first wrong item, as reporting a hundred thousand would block the event loop.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from services.gateway.api.base_models import Lenient, OfModel, unsupported, unsupported_field
from services.gateway.api.field_types import (
    MAX_CHOICES,
    NO_LIMIT,
    STRING_AS_LIST,
    BlockLength,
    LogitBias,
    MaxTokens,
    Penalty,
    Priority,
    Prompts,
    Share,
    SloMs,
    StopStrings,
    StopTokens,
    TemplateOptions,
    TextForms,
    Threshold,
    TopLogprobs,
    also,
    as_on_bus,
)
from services.gateway.api.other_fields import NEUTRAL_OF_PROMPTS
from services.gateway.api.plan import BodyPlanner, WantedCompletion
from services.gateway.api.prompts import Prompt
from services.gateway.api.replies_and_chunks import ChatFormat, CompletionReplies, FimFormat, TextFormat
from services.gateway.api.tool_calls.call_syntax import find_call_syntax
from services.gateway.api.tool_calls.models import THOUGHT, Message, Tools, WithToolChoice
from services.gateway.api.tool_calls.use import ToolUse
from shared.messages.requests import Request
from shared.text import TextModel

MIN_SLO_S = 1e-6  # of a request; a shorter one could become 0


class StreamOptions(Lenient):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's: the usage so far in every chunk with text


class ServedBody(OfModel):
    """Fields of every body that the model answers."""

    effort_field: ClassVar[str] = "reasoning_effort"  # that names a quality floor (serving_fields.py), if there is one

    stream: bool | None = None
    # As OpenAI has it; the bus allows more. None: 0, greedy
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    seed: Annotated[Annotated[int, as_on_bus("seed")] | None, also("seed", "random_seed")] = None  # Mistral's name
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    user: str | None = None
    service_tier: str | None = None  # names an SLO and a priority: serving_fields.py

    # vLLM's
    ignore_eos: bool | None = None
    stop_token_ids: StopTokens | None = None
    top_k: Annotated[int, as_on_bus("top_k")] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, as_on_bus("repetition_penalty")] | None = None

    # DiLaServe's own; two have other names in diffusion models' own code
    slo_ms: SloMs | None = None
    priority: Priority | None = None
    min_threshold: Annotated[Threshold | None, also("min_threshold", "threshold")] = None
    edit_threshold: Annotated[Threshold | None, also("edit_threshold", "editing_threshold")] = None
    block_length: BlockLength | None = None

    def passed(self) -> dict[str, Any]:
        """The given fields that a request has, most of them under the same names."""
        slo_s = self.slo_ms and max(self.slo_ms / 1000, MIN_SLO_S)
        given = {name: getattr(self, name) for name in PASSED} | {"slo_s": slo_s}
        return {name: value for name, value in given.items() if value is not None}

    async def wanted(self, planner: BodyPlanner) -> WantedCompletion:
        """The wishes of this body. Raises: BadInput naming the wrong field; as Conversations.find."""
        raise NotImplementedError


PASSED = [name for name in Request.__struct_fields__ if name in ServedBody.model_fields]


class CompletionBody(ServedBody, TextForms):
    """Fields of both kinds of completion."""

    prompt_field: ClassVar[str] = "prompt"

    # More than the model has room for is cut to it; `gen_length` is the name in diffusion models' own code
    max_tokens: Annotated[MaxTokens | None, also("max_tokens", "gen_length")] = None
    stream_options: StreamOptions | None = None
    stop: Annotated[StopStrings, STRING_AS_LIST] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None  # choices for each prompt
    reasoning_effort: str | None = None
    canvas: bool | None = None  # DiLaServe's: whether the stream also has each step's tokens and guesses
    template: str | None = None  # DiLaServe's: the text, in which <mask:N> is a hole of N tokens

    @property
    def limit(self) -> tuple[str, int | None]:
        """The field that limits the tokens of the text, and its value."""
        return "max_tokens", self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """The number of the most probable tokens that the reply has at each position; None: no log-probabilities."""
        return None

    def completion(
        self,
        text: TextModel,
        prompts: Sequence[Prompt],
        tools: ToolUse,
        format_of: Callable[[str], TextFormat],
        *,
        echo_of: Callable[[Prompt], str] = lambda _: "",
        suffix: str | None = None,
        left_out: Sequence[str] = (),
    ) -> WantedCompletion:
        """The wishes of this body. `format_of`: of the reply, by the id of the first request; `echo_of`: of a prompt,
        the text before a choice; `suffix`: the text after it; `left_out`: fields without effect on this model."""
        n = self.n or 1

        def replies(request_id: str, created_s: float) -> CompletionReplies:
            form, options = format_of(request_id), self.stream_options or StreamOptions()
            echoes = [echo_of(prompt) for prompt in prompts]
            head: dict[str, Any] = {"id": form.id_prefix + request_id, "created": int(created_s)}
            head["model"] = text.card.name
            if self.service_tier is not None:
                head["service_tier"] = "default" if self.service_tier == "auto" else self.service_tier
            return CompletionReplies(
                form=form,
                head=head,
                model=text,
                alternatives=self.alternatives,
                echoes=[echo for echo in echoes for _ in range(n)],
                choices_per_prompt=n,
                include_usage=options.include_usage,
                continuous_usage=options.continuous_usage_stats,
            )

        return WantedCompletion(
            prompts=prompts,
            prompt_field=self.prompt_field,
            n=n,
            limit=self.limit,
            passed=self.passed(),
            tools=tools,
            replies=replies,
            stop=self.stop or (),
            forms=self.forms(),
            suffix=suffix,
            template=self.template,
            alternatives=self.alternatives,
            canvas=bool(self.canvas),
            left_out=left_out,
        )

    @model_validator(mode="after")
    def _refuse_with_template(self) -> Self:
        given = {"logprobs": self.alternatives is not None, "max_tokens": self.max_tokens == 0}
        wrong = next((name for name, is_given in given.items() if is_given), None)
        if self.template is not None and wrong is not None:
            raise unsupported_field(wrong, f"{wrong} is not supported with template")
        return self

    @field_validator("stream_options", "canvas")
    @classmethod
    def _require_stream(cls, value: StreamOptions | bool | None, info: ValidationInfo) -> StreamOptions | bool | None:
        if value and not info.data.get("stream"):
            raise unsupported("is only allowed with stream: true")
        return value


class ChatBody(CompletionBody, WithToolChoice):
    """POST /v1/chat/completions."""

    prompt_field: ClassVar[str] = "messages"

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: MaxTokens | None = None
    chat_template_kwargs: TemplateOptions | None = None

    logprobs: bool | None = None  # of each token of the text
    # With `logprobs`: the number of alternatives to each token
    top_logprobs: TopLogprobs | None = None

    tools: Tools | None = None

    @property
    def alternatives(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    async def wanted(self, planner: BodyPlanner) -> WantedCompletion:
        turns, options = [message.turn() for message in self.messages], self.chat_template_kwargs or {}
        tools = self.tool_use(planner.text, options, thinks=not self.forms())
        unread = [f"chat_template_kwargs.{name}" for name in options if not planner.text.template_reads(name)]
        if not planner.text.template_reads(THOUGHT):
            unread += [f"messages[{at}].{THOUGHT}" for at, each in enumerate(self.messages) if each.reasoning_content]
        prompt = tools.chat(turns, options=options)
        return self.completion(planner.text, [prompt], tools, partial(ChatFormat, tools), left_out=unread)

    @model_validator(mode="after")
    def _require_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise unsupported_field("top_logprobs", "top_logprobs is only allowed with logprobs: true")
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

    prompt: Prompts

    # 0: only with `echo`; the prompt alone comes back
    max_tokens: Annotated[Annotated[int, Field(ge=0), NO_LIMIT] | None, also("max_tokens", "gen_length")] = None
    echo: bool | None = None  # the prompt's text before the completion
    logprobs: TopLogprobs | None = None  # of each token; alternatives of each
    suffix: str | None = None  # the text after the completion, which then has at most `max_tokens`

    def _prompts(self) -> list[Prompt]:
        several = isinstance(self.prompt, list) and any(not isinstance(each, int) for each in self.prompt[:1])
        return cast("list[Prompt]", self.prompt if several else [self.prompt])

    async def wanted(self, planner: BodyPlanner) -> WantedCompletion:
        text, suffix = planner.text, self.suffix or None
        tools = ToolUse(find_call_syntax(text.tool_template))

        def echo_of(prompt: Prompt) -> str:
            if not self.echo:
                return ""
            return prompt if isinstance(prompt, str) else text.decode(cast("list[int]", prompt))

        return self.completion(
            text, self._prompts(), tools, lambda _: self.reply_format(), echo_of=echo_of, suffix=suffix
        )

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.template is not None and self.suffix:
            raise unsupported_field("suffix", "suffix is not supported with template")
        if self.echo and self.logprobs is not None:
            reason = "a diffusion model gives no log-likelihood of a prompt"
            raise unsupported_field("logprobs", f"logprobs is not supported with echo: {reason}")
        if self.max_tokens == 0 and not self.echo:
            raise unsupported_field("max_tokens", "max_tokens must be at least 1; 0 is only allowed with echo: true")
        if len(self._prompts()) * (self.n or 1) > MAX_CHOICES:
            raise unsupported_field("n", f"n times the number of prompts is above {MAX_CHOICES}")
        return self


class FimBody(TextBody):
    """POST /v1/fim/completions, as Mercury and Mistral have it."""

    reply_format: ClassVar[type[TextFormat]] = FimFormat

    prompt: str
    template: None = None
