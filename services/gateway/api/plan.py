"""The wishes of a body, in the same terms for every endpoint, and the plan of its requests and their outputs."""

import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from services.gateway.api.base_models import ADJUSTED_HEADER
from services.gateway.api.form_compiler import TOOLS, Form, FormCompiler, TextForm
from services.gateway.api.prompts import Prompt, encode_prompt, unblocked
from services.gateway.api.replies_and_chunks import Replies
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.stores.request_records import Conversations
from shared.api_keys import ApiKey
from shared.arrays import Int32, pack_int32
from shared.canvases import check_for_canvases, without_effect
from shared.edits import NO_EDITS, edit_threshold_for
from shared.errors import BadInput, TooLong
from shared.messages.instances import ModelCard
from shared.messages.requests import (
    DEFAULT_BLOCK_LENGTH,
    MAX_BLOCK_LENGTH,
    MAX_OUTPUT_TOKENS,
    FinishReason,
    Outcome,
    OutcomeStatus,
    Request,
)
from shared.pinned import FREE, NO_TEXT_AFTER, has_text_after_hole
from shared.text import TextModel, round_up_to_blocks

HOLE = re.compile(r"<mask:([^<>]*)>")
DEFAULT_HOLE_TOKENS = 32  # between a prompt and a suffix


class OutputRoom:
    """The output's blocks. `offset`: prompt tokens within the first one. `tokens`: the longest output."""

    def __init__(
        self, card: ModelCard, prompt_tokens: int, block_length: int | None, label_tokens: int, prompt_field: str
    ) -> None:
        """`block_length`: the client's; None: the model's. `label_tokens`: of the longest label of a choice with its
        end token; 0: no choice. Raises: TooLong for `prompt_field`."""
        block_length = block_length or card.block_length
        if not block_length:
            block_length = DEFAULT_BLOCK_LENGTH
            if label_tokens > block_length:  # labels within one block take one step
                block_length = min(label_tokens, MAX_BLOCK_LENGTH)
        self.prompt_tokens, self.block_length = prompt_tokens, block_length
        self.offset = card.block_offset(prompt_tokens, block_length)
        room = min(card.max_length - prompt_tokens, MAX_OUTPUT_TOKENS)
        self.tokens = (room + self.offset) // block_length * block_length - self.offset
        if self.tokens < 1:
            raise TooLong(
                f"{prompt_field} has {prompt_tokens} tokens; the model's maximum is {card.max_length} with the output, "
                f"which has at least one block of {block_length}",
                prompt_field,
            )

    def whole_blocks(self, tokens: int) -> int:
        """`tokens` rounded up to whole blocks, at most the longest output."""
        return min(round_up_to_blocks(tokens, self.block_length, self.offset), self.tokens)


@dataclass(frozen=True, slots=True)
class InfillOutput:
    """An output in whole blocks, of which the text is the first `text_tokens`."""

    tokens: int
    text_tokens: int
    pinned: bytes  # as in Request


def infill_output(
    template: str | None, suffix: str | None, limit: tuple[str, int | None], text: TextModel, room: OutputRoom
) -> InfillOutput | None:
    """None: no part of the output is given. `limit`: of the tokens of holes, and its field. Raises: BadInput."""
    if template is not None:
        field, given = "template", _template(template, limit, text)
        text_tokens = len(given)
    elif suffix is not None:
        field, end = "suffix", text.encode_text(suffix, "suffix")
        text_tokens = max(min(limit[1] or DEFAULT_HOLE_TOKENS, room.tokens - len(end)), 1)
        given = np.concatenate([_hole(text_tokens), end])
    else:
        return None
    if len(given) > room.tokens:
        with_holes = f"{field} has {len(given)} tokens with its holes"
        raise TooLong(f"{with_holes}; after a prompt of {room.prompt_tokens} the output can have {room.tokens}", field)
    tokens = room.whole_blocks(len(given))
    if text.card.attends_ahead:
        given = np.concatenate([given, np.full(tokens - len(given), text.card.eos_token_id, dtype=np.int32)])
    elif has_text_after_hole(given):
        raise BadInput(f"{field}: {NO_TEXT_AFTER.format(text.card.name)}", field)
    else:  # it may end its text as usual
        given = given[: np.flatnonzero(given == FREE)[0]]
    return InfillOutput(tokens, text_tokens, pack_int32(given))


def _template(template: str, limit: tuple[str, int | None], text: TextModel) -> Int32:
    """Its tokens, FREE in holes. `limit`: of the tokens of holes, and its field. Raises: BadInput."""
    parts = HOLE.split(template)  # texts and lengths take turns
    if not (holes := [_length(part) for part in parts[1::2]]):
        raise BadInput("template has no hole; <mask:N> is a hole of N tokens", "template")
    if sum(holes) > MAX_OUTPUT_TOKENS:
        raise TooLong(f"the holes of template have {sum(holes)} tokens; at most {MAX_OUTPUT_TOKENS}", "template")
    name, most = limit
    if most is not None and sum(holes) > most:
        raise BadInput(f"the holes of template have {sum(holes)} tokens; {name} allows {most}", name)
    texts = [text.encode_text(part, "template") if part else _hole(0) for part in parts[::2]]
    pieces = [piece for own, hole in zip(texts, holes, strict=False) for piece in (own, _hole(hole))]
    return np.concatenate([*pieces, texts[-1]])


def _length(hole: str) -> int:
    """Raises: BadInput."""
    if not re.fullmatch("[0-9]{1,5}", hole) or not 1 <= int(hole) <= MAX_OUTPUT_TOKENS:
        raise BadInput(f"a hole of template is <mask:N>, with N from 1 to {MAX_OUTPUT_TOKENS}", "template")
    return int(hole)


def _hole(tokens: int) -> Int32:
    return np.full(tokens, FREE, dtype=np.int32)


DEFAULT_OUTPUT_TOKENS = 128
QUESTIONS = "questions"  # the field that gives labels by prompt

WriteReplies = Callable[[str, float], Replies]  # called with the id of the first request and the reply's Unix time
Keep = Callable[[str, str], Awaitable[None]]  # stores the conversation; called with the request's id and its cell


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCompletion:
    """The wishes of a body, in the terms of a completion. Errors and headers name the body's own fields."""

    prompts: Iterable[Prompt]  # read once, one at a time: each may be as long as the body
    prompt_field: str
    n: int = 1  # choices for each prompt
    limit: tuple[str, int | None]  # the field that limits the tokens of the text, and its value
    passed: Mapping[str, Any]  # fields that the request has under the same names
    tools: ToolUse
    replies: WriteReplies
    keep: Keep | None = None
    stop: Sequence[str] = ()
    forms: Sequence[Form] = ()  # the forms of the text that the client has given
    labels_by_prompt: Sequence[Sequence[str]] = ()  # the accepted answers, for each prompt its own
    suffix: str | None = None  # the text after the completion
    template: str | None = None  # the text, with holes
    alternatives: int | None = None  # listed beside each token's own log-probability; None: no log-probabilities
    canvas: bool = False
    left_out: Sequence[str] = ()  # fields without effect on this model

    @property
    def choices_field(self) -> str:
        """The field that asks for several choices."""
        return "n" if self.n > 1 else QUESTIONS if self.labels_by_prompt else self.prompt_field

    @property
    def form_field(self) -> str:
        """The field that gives the form of the text."""
        return self.forms[0].field if self.forms else QUESTIONS if self.labels_by_prompt else TOOLS

    async def request(self, text: TextModel, key: ApiKey, form: TextForm, prompt_ids: Int32) -> Request:
        """The request for one prompt, without its own id and seed. Raises: BadInput naming the wrong field."""
        form_field = self.form_field
        label_ids = await unblocked(partial(text.encode_choices, form.labels, form_field), sum(map(len, form.labels)))
        label_tokens = 1 + max(map(len, label_ids)) if label_ids else 0  # with the end token
        block_length = self.passed.get("block_length")
        room = OutputRoom(text.card, len(prompt_ids), block_length, label_tokens, self.prompt_field)
        given = partial(infill_output, self.template, self.suffix, self.limit, text, room)
        infilled = await unblocked(given, len(self.suffix or self.template or ""))
        limit = self.limit[1]
        output_tokens = room.whole_blocks(limit or DEFAULT_OUTPUT_TOKENS)
        max_tokens = min(limit, output_tokens) if limit is not None else None
        if infilled is not None:
            output_tokens, max_tokens = infilled.tokens, infilled.text_tokens
        elif longest := label_tokens or form.max_tokens:
            output_tokens = min(room.whole_blocks(longest), output_tokens)
        fields: dict[str, Any] = {
            "request_id": "unnamed",
            "priority": key.usual_priority,
            **self.passed,
            "prompt_ids": pack_int32(prompt_ids),
            "output_tokens": output_tokens,
            "max_tokens": max_tokens,
            "block_length": room.block_length,
            "stop": list(self.stop),
            "pattern": form.pattern,
            "choices": list(form.labels),
            "pinned": infilled.pinned if infilled is not None else b"",
            "logprobs": self.alternatives is not None,
            "top_logprobs": self.alternatives or 0,
            "guesses": self.canvas,
            "key": key.key_id,
        }
        request = Request(**fields)
        text.check_choices(request, label_ids, output_tokens, form_field)
        check_for_canvases(request, text.card, form_field)
        edit_threshold_for(request, text.card, NO_EDITS)
        return request


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPlan:
    """`requests`: one for each choice. If `outcomes` are known, they need no step and are not published."""

    wanted: WantedCompletion
    requests: Sequence[Request]
    outcomes: Sequence[Outcome] = ()
    left_out: Sequence[str] = ()  # fields without effect on this model, and parts of a schema that are never written
    adjusted: Mapping[str, str] = field(default_factory=dict)  # the header that names a limit above the model's room


@dataclass(frozen=True, slots=True)
class BodyPlanner:
    """The parts of the gateway that plan a body."""

    text: TextModel
    patterns: FormCompiler
    key: ApiKey
    conversations: Conversations

    async def plan(self, wanted: WantedCompletion) -> BodyPlan:
        """Tokenize the prompts, and choose the length of each output. Raises: BadInput naming the wrong field."""
        text = self.text
        text.check_tokens(
            stop_token_ids=wanted.passed.get("stop_token_ids", ()), logit_bias=wanted.passed.get("logit_bias", ())
        )
        prompts = [await encode_prompt(prompt, text, wanted.prompt_field) for prompt in wanted.prompts]
        if wanted.limit[1] == 0:
            outcomes = [_outcome_without_steps(ids, text) for ids in prompts for _ in range(wanted.n)]
            requests = [Request(request_id=outcome.request_id) for outcome in outcomes]
            return BodyPlan(wanted=wanted, requests=requests, outcomes=outcomes)
        one_step = wanted.alternatives is not None
        form = await self.patterns.form_of(wanted.forms, wanted.tools, self.key.key_id, one_step=one_step)
        forms = [TextForm(labels=labels) for labels in wanted.labels_by_prompt] or [form] * len(prompts)
        made = [await wanted.request(text, self.key, of, ids) for ids, of in zip(prompts, forms, strict=True)]
        seed = wanted.passed.get("seed")
        seeds = [None if seed is None else (seed + i + 2**63) % 2**64 - 2**63 for i in range(wanted.n)]
        requests = [replace(each, request_id=uuid.uuid4().hex, seed=own) for each in made for own in seeds]
        left_out = [*wanted.left_out, *form.left_out, *without_effect(requests[0], self.text.card)]
        return BodyPlan(wanted=wanted, requests=requests, left_out=left_out, adjusted=_adjusted(wanted, requests))


def _outcome_without_steps(prompt_ids: Int32, text: TextModel) -> Outcome:
    """The outcome of a prompt that only comes back. Raises: BadInput naming the wrong field."""
    text.check_length(len(prompt_ids), 0, "prompt")
    return Outcome(
        request_id=uuid.uuid4().hex,
        status=OutcomeStatus.COMPLETED,
        finish_reason=FinishReason.LENGTH,
        prompt_tokens=len(prompt_ids),
        arrival_s=time.time(),
    )


def _adjusted(wanted: WantedCompletion, requests: Sequence[Request]) -> dict[str, str]:
    """The header that names the limit if the model has less room for a request, with the least; empty if it has enough.
    A template has its own length."""
    name, limit = wanted.limit
    if limit is None or wanted.template is not None:
        return {}
    cut = [each.max_tokens for each in requests if each.max_tokens is not None and each.max_tokens != limit]
    return {ADJUSTED_HEADER: f"{name}={min(cut)}"} if cut else {}
