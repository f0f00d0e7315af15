"""POST /v1/messages and /v1/messages/count_tokens."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from services.gateway.admission.admission import key_of
from services.gateway.api.anthropic_messages.body import CountTokensBody, MessageBody
from services.gateway.api.anthropic_messages.response_models import MESSAGE_ERRORS, MessageObject, TokenCount
from services.gateway.api.app_context import AppContext
from services.gateway.api.complete import complete
from services.gateway.api.openapi import json_body, streamed
from services.gateway.api.other_fields import ignored_header
from services.gateway.api.prompts import encode_prompt
from services.gateway.api.request_body import read_body

MESSAGES_PATH = "/v1/messages"


def message_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix=MESSAGES_PATH, responses=MESSAGE_ERRORS)

    @router.post("", responses=streamed(MessageObject), openapi_extra=json_body(MessageBody))
    async def message(request: Request) -> Response:
        """Reply to a conversation in the form of Anthropic's Messages API, whole or as a stream of its events."""
        return await complete(context, request, MessageBody)

    @router.post("/count_tokens", openapi_extra=json_body(CountTokensBody))
    async def count_tokens(request: Request, response: Response) -> TokenCount:
        """The tokens of a conversation in the model's chat template."""
        context.admission.check_rate(key_of(request))
        async with read_body(request, CountTokensBody, context.bodies) as body:
            response.headers.update(ignored_header(body))
            text = context.cells_of(body.model).text
            chat = body.chat(body.tool_use(text))
            return TokenCount(input_tokens=len(await encode_prompt(chat, text, "messages")))

    return router
