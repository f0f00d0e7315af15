"""The replies of /v1 in the OpenAPI document.

Completion routes write their replies as plain JSON (replies_and_chunks.py), and these models document them; a test
compares both.
"""

from datetime import datetime
from typing import Any, Literal, Self

import msgspec
from msgspec.structs import asdict
from pydantic import Field

from services.gateway.view_models import Ms, Page, ResponseModel, Rounded
from shared.messages.plans import PlanRecord, ReconfiguratorStats
from shared.messages.requests import ActiveRequest, FinishReason, Outcome, OutcomeStatus


class ErrorDetail(ResponseModel):
    message: str
    type: Literal[
        "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"
    ]
    param: str | None = Field(description="the wrong field")
    code: str | None


class ErrorBody(ResponseModel):
    """The body of every error."""

    error: ErrorDetail


class PromptTokensDetails(ResponseModel):
    cached_tokens: int = Field(description="tokens of the prompt that a prefix cache had")


class Usage(ResponseModel):
    """Units: tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = Field(None, description="absent before a request has ended")


class Serving(ResponseModel):
    """How a request was served. Without a step, only the first two fields are present."""

    request_id: str
    output_tokens: int = Field(description="output length in whole blocks")
    steps: int | None = Field(None, description="denoising steps run")
    recompute_steps: int | None = Field(None, description="recompute steps among them")
    mean_threshold: Rounded | None = Field(None, description="mean confidence threshold, weighted by unmasked tokens")
    min_threshold: float | None = Field(None, description="lowest confidence threshold used")
    slo_ms: Ms | None = Field(None, validation_alias="slo_s")
    latency_ms: Ms | None = Field(None, validation_alias="latency_s", description="time from arrival to the last token")
    step_ms: Ms | None = Field(None, validation_alias="step_s", description="compute time within the latency")
    slo_met: bool | None = None
    slo_feasible: bool | None = Field(None, description="false if no threshold could meet the SLO, as was estimated")
    instances: list[str] | None = Field(None, description="instances in the order of first use")
    migrations: int | None = None
    edits: int | None = Field(None, description="changes of tokens that an earlier step had unmasked, if there are any")
    choices: dict[str, float] | None = Field(
        None, description="the probability of each label of a choice with log-probabilities"
    )
    unverified: bool | None = Field(
        None, description="an instance that served it was found to compute wrong: the text may be wrong"
    )

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        stats = asdict(outcome.stats) if outcome.stats else {}
        for name, usual in (("edits", 0), ("slo_feasible", True)):
            if stats.get(name) == usual:
                del stats[name]
        if outcome.choices:
            stats["choices"] = outcome.choices
        if outcome.unverified:
            stats["unverified"] = True
        return cls(request_id=outcome.request_id, output_tokens=outcome.output_tokens, **stats)


class ReplyFunction(ResponseModel):
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class ReplyCall(ResponseModel):
    id: str
    type: Literal["function"]
    function: ReplyFunction


class ReplyMessage(ResponseModel):
    role: Literal["assistant"]
    content: str | None = Field(description="null if there are only calls of tools")
    refusal: None
    reasoning_content: str | None = Field(None, description="the model's thought before it; absent if there is none")
    tool_calls: list[ReplyCall] | None = Field(None, description="absent if there are none")


class Alternative(ResponseModel):
    token: str = Field(description="its part of the text")
    logprob: float = Field(description="by the model at the step that committed the token, given the canvas then")
    bytes: list[int] = Field(description="UTF-8")


class ReplyToken(Alternative):
    top_logprobs: list[Alternative] = Field(description="the most probable tokens at this position, at the same step")


class ChatLogprobs(ResponseModel):
    content: list[ReplyToken]
    refusal: None


class TextLogprobs(ResponseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None = Field(
        description="at each position the most probable tokens and the chosen one; null with `logprobs: 0`"
    )
    text_offset: list[int] = Field(description="characters of the text before each token")


class Choice(ResponseModel):
    index: int
    finish_reason: FinishReason | Literal["tool_calls"] | None
    stop_reason: int | str | None = Field(description="the stop token or stop text that ended the text")


class ChatChoice(Choice):
    logprobs: ChatLogprobs | None
    message: ReplyMessage


class TextChoice(Choice):
    logprobs: TextLogprobs | None
    text: str


class FimMessage(ResponseModel):
    role: Literal["assistant"]
    content: str


class FimChoice(TextChoice):
    message: FimMessage = Field(description="with the same text, as Mistral's")


class Completion(ResponseModel):
    id: str
    created: int = Field(description="Unix time, seconds")
    model: str
    service_tier: str | None = Field(None, description="as in the request; `default` for `auto`")
    usage: Usage
    dilaserve: Serving


class ChatCompletion(Completion):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextCompletion(Completion):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class FimCompletion(Completion):
    object: Literal["text_completion"]
    choices: list[FimChoice]


class Model(ResponseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time, seconds")
    owned_by: str
    max_model_len: int = Field(description="maximum tokens of prompt and output together")
    type: Literal["base"] = "base"
    capabilities: dict[str, bool] = Field(
        default={"completion_chat": True, "completion_fim": True, "function_calling": True},
        description="for Mistral's clients",
    )
    display_name: str = Field(description="the id, for Anthropic's clients")
    created_at: datetime = Field(description="`created`, for Anthropic's clients")


class ModelList(Page[Model]):
    """`has_more` and the ids are for Anthropic's clients."""

    first_id: str
    last_id: str


class StoredRequestError(ResponseModel):
    message: str
    param: str | None = Field(validation_alias="field")


class RequestSummary(ResponseModel):
    """A finished request. In a list, `text` is shortened."""

    id: str = Field(validation_alias="request_id")
    status: OutcomeStatus
    arrival_s: float = Field(description="Unix time, seconds")
    key: str = Field(description="the id of its API key; empty: none")
    priority: int
    trace_id: str | None = Field(description="of its trace (W3C); null: none")
    text: str
    error: StoredRequestError | None
    dilaserve: Serving

    @classmethod
    def of(cls, outcome: Outcome, **more: Any) -> Self:
        """`more`: the fields that the outcome does not have."""
        error = asdict(outcome.error) if outcome.error else None
        served = {"trace_id": outcome.trace_id or None, "error": error, "dilaserve": Serving.of(outcome)}
        return cls.model_validate(asdict(outcome) | served | more)


class StoredRequest(RequestSummary):
    object: Literal["dilaserve.request"]
    finish_reason: FinishReason | None
    usage: Usage
    steps: list[dict[str, Any]] = Field(description="threshold, instance and time left of each step")


class UnfinishedRequest(ResponseModel):
    """A request without an outcome. Units: tokens, steps."""

    object: Literal["dilaserve.request"]
    id: str = Field(validation_alias="request_id")
    status: Literal["in_progress", "cancelling"]
    arrival_s: float = Field(description="Unix time, seconds")
    key: str = Field(description="the id of its API key; empty: none")
    priority: int
    slo_ms: Ms | None = Field(validation_alias="slo_s")
    output_tokens: int = Field(description="to write")
    unmasked_tokens: int = Field(description="written so far")
    steps: int = Field(description="run so far")
    instance: str | None = Field(description="that runs its next step; null: it waits")
    migrations: int
    mean_threshold: Rounded | None = Field(description="so far, weighted by unmasked tokens; null: nothing is unmasked")
    trace_id: str | None = Field(description="of its trace (W3C); null: none")

    @classmethod
    def of(cls, active: ActiveRequest) -> Self:
        optional = {"instance": active.instance or None, "trace_id": active.trace_id or None}
        fixed = {"object": "dilaserve.request", "status": "in_progress"}
        return cls.model_validate(asdict(active) | optional | fixed)


class Status(ResponseModel):
    status: str


class PlanList(msgspec.Struct, frozen=True, kw_only=True):
    """The reconfigurator's decisions."""

    object: Literal["list"] = "list"
    data: list[PlanRecord]
    reconfigurator: ReconfiguratorStats | None  # the one that runs; None: none does


class RequestPage(Page[RequestSummary | UnfinishedRequest]):
    total: int | None = Field(default=None, description="finished ones of all pages")
