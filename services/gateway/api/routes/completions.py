"""The routes whose bodies the model answers, and POST /v1/messages/count_tokens."""

from fastapi import APIRouter, Request, Response

from services.gateway.api.anthropic_messages.body import CountTokensBody, MessageBody
from services.gateway.api.anthropic_messages.replies import MessageErrorBody, MessageObject, TokenCount
from services.gateway.api.app_context import AppContext
from services.gateway.api.complete import complete
from services.gateway.api.openai_decisions.body import DecisionBody, DecisionObject
from services.gateway.api.openai_responses.body import ResponseBody
from services.gateway.api.openai_responses.replies import ResponseObject
from services.gateway.api.openapi import errors, json_body, streamed
from services.gateway.api.other_fields import ignored_header
from services.gateway.api.prompts import encode_prompt
from services.gateway.api.request_models import ChatBody, FimBody, TextBody
from services.gateway.api.response_models import ChatCompletion, FimCompletion, TextCompletion
from services.gateway.api.routes.tokens import read_model_body

MESSAGES_PATH = "/v1/messages"


def completion_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.post("/chat/completions", responses=streamed(ChatCompletion), openapi_extra=json_body(ChatBody))
    async def chat(request: Request) -> Response:
        """Reply to a conversation, whole or as a stream of committed text."""
        return await complete(context, request, ChatBody)

    @router.post("/completions", responses=streamed(TextCompletion), openapi_extra=json_body(TextBody))
    async def completions(request: Request) -> Response:
        """Continue a plain prompt, whole or as a stream of committed text."""
        return await complete(context, request, TextBody)

    @router.post("/fim/completions", responses=streamed(FimCompletion), openapi_extra=json_body(FimBody))
    async def fim(request: Request) -> Response:
        """Fill in the text between a prompt and a suffix, as Mercury and Mistral have it."""
        return await complete(context, request, FimBody)

    @router.post("/responses", responses=streamed(ResponseObject), openapi_extra=json_body(ResponseBody))
    async def respond(request: Request) -> Response:
        """Reply to a conversation in the form of OpenAI's Responses API, whole or as a stream of its events."""
        return await complete(context, request, ResponseBody)

    @router.post("/decisions", responses={200: {"model": DecisionObject}}, openapi_extra=json_body(DecisionBody))
    async def decide(request: Request) -> Response:
        """Answer questions about an input with the probability of each option, as OpenAI's Decisions API has it."""
        return await complete(context, request, DecisionBody)

    return router


def message_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix=MESSAGES_PATH, responses=errors(MessageErrorBody))

    @router.post("", responses=streamed(MessageObject), openapi_extra=json_body(MessageBody))
    async def message(request: Request) -> Response:
        """Reply to a conversation in the form of Anthropic's Messages API, whole or as a stream of its events."""
        return await complete(context, request, MessageBody)

    @router.post("/count_tokens", openapi_extra=json_body(CountTokensBody))
    async def count_tokens(request: Request, response: Response) -> TokenCount:
        """The tokens of a conversation in the model's chat template."""
        async with read_model_body(context, request, response, CountTokensBody) as (body, text):
            response.headers.update(ignored_header(body, body.unread(text)))
            chat = body.chat(body.tool_use(text))
            return TokenCount(input_tokens=len(await encode_prompt(chat, text, "messages")))

    return router
