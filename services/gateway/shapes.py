"""The replies of /v1 as the OpenAPI document describes them; OpenAI's own, and what DiLaServe adds.

The hot routes write their replies as plain JSON (replies.py) and only document these shapes; a test holds the two
together.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.messages.requests import FinishReason, OutcomeStatus


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorDetail(Shape):
    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None = Field(description="the field at fault")
    code: str | None


class ErrorBody(Shape):
    """Every error."""

    error: ErrorDetail


class Usage(Shape):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Serving(Shape):
    """How a request was served. Only the first two are there where no step ran."""

    request_id: str
    output_tokens: int = Field(description="the output length, in whole blocks")
    steps: int | None = Field(None, description="denoising steps run")
    recompute_steps: int | None = Field(None, description="of these, forwards over the whole sequence")
    mean_threshold: float | None = Field(None, description="of the tokens unmasked")
    min_threshold: float | None = Field(None, description="lowest used")
    slo_ms: float | None = None
    latency_ms: float | None = Field(None, description="from arrival to the last token")
    step_ms: float | None = Field(None, description="of the latency, computing")
    slo_met: bool | None = None
    instances: list[str] | None = Field(None, description="in the order of first use")
    migrations: int | None = None


class ReplyMessage(Shape):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Shape):
    index: Literal[0]
    message: ReplyMessage
    logprobs: None
    finish_reason: FinishReason | None


class TextChoice(Shape):
    index: Literal[0]
    text: str
    logprobs: None
    finish_reason: FinishReason | None


class Completion(Shape):
    id: str
    created: int = Field(description="Unix time, seconds")
    model: str
    usage: Usage
    dilaserve: Serving


class ChatCompletion(Completion):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextCompletion(Completion):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class Model(Shape):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time, seconds")
    owned_by: str
    max_model_len: int = Field(description="tokens, prompt and output together")


class ModelList(Shape):
    object: Literal["list"] = "list"
    data: list[Model]


class OutcomeError(Shape):
    message: str
    param: str | None


class StoredRequest(Shape):
    """How a request ended."""

    object: Literal["dilaserve.request"] = "dilaserve.request"
    id: str
    status: OutcomeStatus
    text: str
    finish_reason: FinishReason | None
    usage: Usage
    error: OutcomeError | None
    dilaserve: Serving
    steps: list[dict[str, Any]] = Field(description="each step's threshold and instance against the deadline")


class Status(Shape):
    status: str
