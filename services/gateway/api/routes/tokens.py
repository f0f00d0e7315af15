"""POST /tokenize and /detokenize, in the form of vLLM's."""

from fastapi import APIRouter, Request, Response

from services.gateway.admission.admission import key_of
from services.gateway.api.app_context import AppContext
from services.gateway.api.openapi import json_body
from services.gateway.api.other_fields import ignored_header
from services.gateway.api.prompts import encode_prompt, unblocked
from services.gateway.api.request_body import read_body
from services.gateway.api.token_models import DetokenizeBody, DetokenizedText, TokenizeBody, TokenList


def token_routes(context: AppContext) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", openapi_extra=json_body(TokenizeBody))
    async def tokenize(http: Request, response: Response) -> TokenList:
        """The tokens of a prompt, or of messages in the model's chat template."""
        context.admission.check_rate(key_of(http))
        async with read_body(http, TokenizeBody, context.bodies) as body:
            response.headers.update(ignored_header(body))
            text = context.cells_of(body.model).text
            prompt, field = body.given(text)
            ids = await encode_prompt(prompt, text, field)
        return TokenList(tokens=ids.tolist(), count=len(ids), max_model_len=text.card.max_length)

    @router.post("/detokenize", openapi_extra=json_body(DetokenizeBody))
    async def detokenize(http: Request, response: Response) -> DetokenizedText:
        """The text of tokens, by default without special tokens."""
        context.admission.check_rate(key_of(http))
        async with read_body(http, DetokenizeBody, context.bodies) as body:
            response.headers.update(ignored_header(body))
            text = context.cells_of(body.model).text

            def decode() -> str:
                ids = text.check_ids(body.tokens, "tokens")
                return text.decode(ids, with_special=body.skip_special_tokens is False)

            return DetokenizedText(prompt=await unblocked(decode, len(body.tokens)))

    return router
