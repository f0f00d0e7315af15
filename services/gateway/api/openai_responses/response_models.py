"""The reply of /v1/responses in the OpenAPI document."""

from typing import Any, Literal

from pydantic import Field

from services.gateway.api.response_models import ReplyToken, Serving
from services.gateway.view_models import ResponseModel


class OutputText(ResponseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[None]
    logprobs: list[ReplyToken]


class OutputMessage(ResponseModel):
    id: str
    type: Literal["message"]
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(ResponseModel):
    id: str
    type: Literal["function_call"]
    status: Literal["completed", "incomplete"]
    call_id: str
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class IncompleteDetails(ResponseModel):
    reason: Literal["max_output_tokens"]


class ResponseUsage(ResponseModel):
    """Units: tokens."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseObject(ResponseModel):
    """A reply; the fields of the body come back as they were applied."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time, seconds")
    status: Literal["completed", "incomplete"]
    model: str
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    output: list[OutputMessage | OutputCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    service_tier: str
    store: bool = Field(description="whether `previous_response_id` can name this response")
    temperature: float
    text: dict[str, Any]
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage
    user: str | None
    dilaserve: Serving
