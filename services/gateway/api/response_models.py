"""The replies of /v1 as the OpenAPI document describes them; OpenAI's own, and what DiLaServe adds.

The hot routes write their replies as plain JSON (replies.py) and only document these shapes; a test holds the two
together.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.messages.gateway import BatchStatus
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


class StoredRequestError(Shape):
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
    error: StoredRequestError | None
    dilaserve: Serving
    steps: list[dict[str, Any]] = Field(description="each step's threshold and instance against the deadline")


class Status(Shape):
    status: str


class FileObject(Shape):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Unix time, seconds")
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(Shape):
    object: Literal["list"] = "list"
    data: list[FileObject]
    has_more: bool = False


class Deleted(Shape):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class BatchFault(Shape):
    code: str
    message: str
    line: int | None
    param: str | None = None


class BatchErrors(Shape):
    object: Literal["list"] = "list"
    data: list[BatchFault]


class BatchCounts(Shape):
    total: int
    completed: int
    failed: int


class BatchObject(Shape):
    """A batch. Times are Unix times in seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None
    cancelled_at: int | None = None
    request_counts: BatchCounts
    metadata: dict[str, str]


class BatchList(Shape):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool
