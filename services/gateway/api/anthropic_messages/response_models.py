"""The replies of /v1/messages in the OpenAPI document."""

from typing import Any, Literal

from pydantic import Field

from services.gateway.api.response_models import Serving
from services.gateway.view_models import ResponseModel


class TextBlock(ResponseModel):
    type: Literal["text"]
    text: str


class CallOfTool(ResponseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(ResponseModel):
    """Units: tokens."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class MessageObject(ResponseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | CallOfTool]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    dilaserve: Serving


class TokenCount(ResponseModel):
    input_tokens: int


class MessageErrorDetail(ResponseModel):
    type: str
    message: str
    param: str | None
    code: str | None
    details: dict[str, Any] | None = Field(None, description="with a `thread`: that the server has no threads")


class MessageErrorBody(ResponseModel):
    """The body of every error of these paths."""

    type: Literal["error"]
    error: MessageErrorDetail
