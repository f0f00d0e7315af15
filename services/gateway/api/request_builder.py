"""Builds the bus request from a client's body: tokenizes the prompt, and chooses the length of the output."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

from services.gateway.api.infill import InfillOutput, infill_output
from services.gateway.api.other_fields import ADJUSTED_HEADER
from services.gateway.api.output_room import OutputRoom, output_room
from services.gateway.api.request_models import ChatBody, CompletionBody, TextBody
from services.gateway.api.text_forms import field_of_form, form_of
from services.gateway.api.token_models import TokenizeBody
from services.gateway.api.tool_calls.call_syntax import find_call_syntax
from services.gateway.api.tool_calls.use import conversation, tool_use
from shared.arrays import Int32, pack_int32
from shared.edits import NO_EDITS, edit_threshold_for
from shared.messages.requests import FinishReason, Outcome, OutcomeStatus, Request
from shared.text import TextModel
from shared.tokenizer import LONG_TEXT

DEFAULT_OUTPUT_TOKENS = 128

T = TypeVar("T")


async def build_request(
    body: CompletionBody, text: TextModel, request_id: str, key_id: str, usual_priority: int = 0
) -> Request:
    """`key_id` is the API key's; `usual_priority` is that of a body without one. Raises: BadInput naming the wrong
    field."""
    text.check_stop_token_ids(body.stop_token_ids or [])
    prompt_ids = await encode_prompt(body, text)
    use = tool_use(body, text)
    form = await form_of(body, use.pattern if use.tools else None)
    form_field = field_of_form(body)
    labels = await unblocked(partial(text.encode_choices, form.labels, form_field), sum(map(len, form.labels)))
    label_tokens = 1 + max(map(len, labels)) if labels else 0
    room = output_room(body, text.card, len(prompt_ids), label_tokens)
    infilled, (_, limit) = await _infill(body, text, room), body.limit
    output_tokens = room.whole_blocks(limit or DEFAULT_OUTPUT_TOKENS)
    max_tokens = min(limit, output_tokens) if limit is not None else None
    if infilled is not None:
        output_tokens, max_tokens = infilled.tokens, infilled.text_tokens
    elif longest := label_tokens or form.max_tokens:
        output_tokens = min(room.whole_blocks(longest), output_tokens)
    request = Request(
        request_id=request_id,
        prompt_ids=pack_int32(prompt_ids),
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        block_length=room.block_length,
        slo_s=body.slo_ms / 1000 if body.slo_ms is not None else None,
        priority=usual_priority if body.priority is None else body.priority,
        min_threshold=body.min_threshold or 0.0,
        edit_threshold=body.edit_threshold,
        temperature=body.temperature or 0.0,
        seed=body.seed,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        stop=body.stop or [],
        stop_token_ids=body.stop_token_ids or [],
        pattern=form.pattern,
        choices=list(form.labels),
        pinned=infilled.pinned if infilled is not None else b"",
        ignore_eos=bool(body.ignore_eos),
        logprobs=body.wants_logprobs,
        top_logprobs=body.alternatives,
        stream=bool(body.stream),
        guesses=bool(body.canvas),
        key=key_id,
    )
    text.check_choices(request, labels, output_tokens, form_field)
    edit_threshold_for(request, text.card, NO_EDITS)
    return request


async def encode_prompt(body: CompletionBody | TokenizeBody, text: TextModel) -> Int32:
    """The tokens of the body's prompt or messages. Raises: BadInput naming the wrong field."""
    match body:
        case ChatBody() | TokenizeBody(messages=list()):
            encode, length = _chat_encoder(body, text)
        case TextBody(prompt=str(prompt)) | TokenizeBody(prompt=str(prompt)):
            encode, length = partial(text.encode_prompt, prompt), len(prompt)
        case TextBody(prompt=list(token_ids)):
            return text.check_ids(cast("list[int]", token_ids), "prompt")  # single_bodies left one prompt
        case _:
            raise AssertionError(type(body))
    return await unblocked(encode, length)


async def unblocked(work: Callable[[], T], length: int) -> T:
    """The result of `work`; of texts with many characters or tokens, in a thread."""
    return await asyncio.to_thread(work) if length > LONG_TEXT else work()


def _chat_encoder(body: ChatBody | TokenizeBody, text: TextModel) -> tuple[Callable[[], Int32], int]:
    """The function that encodes a chat, and about how many characters the chat has."""
    tools = [tool for _, tool in tool_use(body, text).tools] if isinstance(body, ChatBody) else body.tools or []
    turns, listed = conversation(body.messages or [], tools, find_call_syntax(text.tool_template))
    length = sum(len(str(turn)) for turn in (*turns, *listed))
    opens_reply = not isinstance(body, TokenizeBody) or body.add_generation_prompt is not False
    return partial(text.encode_turns, turns, body.prompt_field, listed, opens_reply=opens_reply), length


async def outcome_without_steps(body: CompletionBody, text: TextModel, request_id: str) -> Outcome:
    """The outcome of a body with `max_tokens: 0`, which needs no step. Raises: BadInput naming the wrong field."""
    text.check_stop_token_ids(body.stop_token_ids or [])
    prompt_tokens = len(await encode_prompt(body, text))
    text.check_length(prompt_tokens, 0, "prompt")
    return Outcome(
        request_id=request_id,
        status=OutcomeStatus.COMPLETED,
        finish_reason=FinishReason.LENGTH,
        prompt_tokens=prompt_tokens,
        arrival_s=time.time(),
    )


def echoed_prompt(body: CompletionBody, text: TextModel) -> str:
    """The prompt's text before the completion, if the client wants it; otherwise empty."""
    match body:
        case TextBody(echo=True, prompt=str(prompt)):
            return prompt
        case TextBody(echo=True, prompt=list(token_ids)):
            return text.decode(cast("list[int]", token_ids))
        case _:
            return ""


async def _infill(body: CompletionBody, text: TextModel, room: OutputRoom) -> InfillOutput | None:
    """As `infill_output`, of long texts in a thread."""
    return await unblocked(partial(infill_output, body, text, room), len(body.given_suffix or body.template or ""))


def adjusted_header(body: CompletionBody, requests: Sequence[Request]) -> dict[str, str]:
    """The header that names the limit if the model has less room for a request, with the least; empty if it has enough.

    `requests`: those of the body's choices.
    """
    name, limit = body.limit
    if limit is None or body.template is not None:  # which has its own length
        return {}
    cut = [each.max_tokens for each in requests if each.max_tokens is not None and each.max_tokens != limit]
    return {ADJUSTED_HEADER: f"{name}={min(cut)}"} if cut else {}
