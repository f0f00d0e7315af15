"""POST /tokenize and /detokenize, in the form of vLLM's: their bodies, replies and routes."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, ClassVar, Self, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from services.gateway.admission.admission import key_of
from services.gateway.api.app_context import AppContext
from services.gateway.api.base_models import OfModel, unsupported_field
from services.gateway.api.field_types import TemplateOptions
from services.gateway.api.openapi import json_body
from services.gateway.api.other_fields import NEUTRAL_OF_PROMPTS, ignored_header
from services.gateway.api.prompts import Prompt, encode_prompt, unblocked
from services.gateway.api.request_body import read_body
from services.gateway.api.tool_calls.models import Message, Tools, WithTools
from services.gateway.view_models import ResponseModel
from shared.text import TextModel

B = TypeVar("B", bound=OfModel)


class TokenizeBody(OfModel, WithTools):
    """POST /tokenize: a prompt or messages."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_OF_PROMPTS

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    tools: Tools | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None  # of messages; false: without the beginning of the model's reply

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise unsupported_field("prompt", "give either prompt or messages")
        return self

    def given(self, text: TextModel) -> tuple[Prompt, str]:
        """The prompt, and its field."""
        tools, options = self.tool_use(text), self.chat_template_kwargs
        if self.messages is None:
            return self.prompt or "", "prompt"
        turns, opens_reply = [message.turn() for message in self.messages], self.add_generation_prompt is not False
        return tools.chat(turns, opens_reply=opens_reply, options=options), "messages"


class DetokenizeBody(OfModel):
    """POST /detokenize."""

    tokens: Annotated[list[int], Field(fail_fast=True)]
    skip_special_tokens: bool | None = None  # None: true


class TokenList(ResponseModel):
    tokens: list[int]
    count: int
    max_model_len: int = Field(description="maximum number of tokens, prompt and output together")


class DetokenizedText(ResponseModel):
    prompt: str


@asynccontextmanager
async def read_model_body(
    context: AppContext, http: Request, response: Response, kind: type[B]
) -> AsyncIterator[tuple[B, TextModel]]:
    """The body of a request without an instance, and the text of its model. The reply names the ignored fields.

    Raises: ApiError if the rate of the key is exceeded, or there is no such model; as `read_body`.
    """
    context.admission.check_rate(key_of(http))
    async with read_body(http, kind, context.bodies) as body:
        response.headers.update(ignored_header(body))
        yield body, context.cells_of(body.model).text


def token_routes(context: AppContext) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", openapi_extra=json_body(TokenizeBody))
    async def tokenize(http: Request, response: Response) -> TokenList:
        """The tokens of a prompt, or of messages in the model's chat template."""
        async with read_model_body(context, http, response, TokenizeBody) as (body, text):
            prompt, field = body.given(text)
            ids = await encode_prompt(prompt, text, field)
        return TokenList(tokens=ids.tolist(), count=len(ids), max_model_len=text.card.max_length)

    @router.post("/detokenize", openapi_extra=json_body(DetokenizeBody))
    async def detokenize(http: Request, response: Response) -> DetokenizedText:
        """The text of tokens, by default without special tokens."""
        async with read_model_body(context, http, response, DetokenizeBody) as (body, text):

            def decode() -> str:
                ids = text.check_ids(body.tokens, "tokens")
                return text.decode(ids, with_special=body.skip_special_tokens is False)

            return DetokenizedText(prompt=await unblocked(decode, len(body.tokens)))

    return router
