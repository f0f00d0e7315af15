"""POST /v1/responses."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from services.gateway.api.app_context import AppContext
from services.gateway.api.complete import complete
from services.gateway.api.openai_responses.body import ResponseBody
from services.gateway.api.openai_responses.response_models import ResponseObject
from services.gateway.api.openapi import json_body, streamed


def response_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/responses")

    @router.post("", responses=streamed(ResponseObject), openapi_extra=json_body(ResponseBody))
    async def respond(request: Request) -> Response:
        """Reply to a conversation in the form of OpenAI's Responses API, whole or as a stream of its events."""
        return await complete(context, request, ResponseBody)

    return router
