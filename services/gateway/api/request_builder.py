"""Builds the bus request from a client's body: tokenizes the prompt, rounds the output to whole blocks."""

import asyncio
from functools import partial

from services.gateway.api.request_models import ChatBody, CompletionBody, TextBody
from shared.arrays import Int32, pack_int32
from shared.errors import BadInput
from shared.messages.requests import MAX_OUTPUT_TOKENS, ChatMessage, Request
from shared.text import LONG_TEXT, TextModel, round_up_to_blocks

DEFAULT_OUTPUT_TOKENS = 128


async def build_request(
    body: CompletionBody, text: TextModel, request_id: str, arrival_s: float, key_id: str
) -> Request:
    """`arrival_s` is Unix time, `key_id` the API key's. Raises: BadInput naming the wrong field."""
    prompt_ids = await _encode(body, text)
    return Request(
        request_id=request_id,
        prompt_ids=pack_int32(prompt_ids),
        output_tokens=_output_tokens(body, text, len(prompt_ids)),
        block_length=body.block_length,
        slo_s=body.slo_ms / 1000 if body.slo_ms is not None else None,
        priority=body.priority,
        min_threshold=body.min_threshold,
        temperature=body.temperature or 0.0,
        seed=body.seed,
        stop=body.stop or [],
        stream=bool(body.stream),
        guesses=body.canvas,
        arrival_s=arrival_s,
        key=key_id,
    )


async def _encode(body: CompletionBody, text: TextModel) -> Int32:
    match body:
        case ChatBody():
            roles = {"developer": "system"}  # chat templates have no role `developer`
            messages = [
                ChatMessage(role=roles.get(each.role, each.role), content=each.content) for each in body.messages
            ]
            encode = partial(text.encode_chat, messages)
            length = sum(len(message.role) + len(message.content) for message in messages)
        case TextBody(prompt=str(prompt)):
            encode, length = partial(text.encode_prompt, prompt), len(prompt)
        case TextBody(prompt=list(token_ids)):
            return text.check_ids(token_ids, "prompt")
        case _:
            raise AssertionError(type(body))
    return await asyncio.to_thread(encode) if length > LONG_TEXT else encode()


def _output_tokens(body: CompletionBody, text: TextModel, prompt_tokens: int) -> int:
    """The client's limit in whole blocks, or the default as far as the model's length allows."""
    room, block_length = text.card.max_length - prompt_tokens, body.block_length
    field, limit = "max_tokens", body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        field, limit = "max_completion_tokens", body.max_completion_tokens
    if room < block_length:
        prompt = "messages" if isinstance(body, ChatBody) else "prompt"
        raise BadInput(
            f"{prompt} has {prompt_tokens} tokens; the model's maximum is {text.card.max_length} with the output, "
            f"which has at least one block of {block_length}",
            prompt,
        )
    if limit is None:
        return min(round_up_to_blocks(DEFAULT_OUTPUT_TOKENS, block_length), room // block_length * block_length)
    output_tokens = round_up_to_blocks(limit, block_length)
    if output_tokens > MAX_OUTPUT_TOKENS:
        raise BadInput(f"{field} is {output_tokens} in whole blocks; the maximum is {MAX_OUTPUT_TOKENS}", field)
    text.check_length(prompt_tokens, output_tokens, field)
    return output_tokens
