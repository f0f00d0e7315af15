"""The wishes of a body, in the same terms for every endpoint, and the plan of its requests."""

import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from services.gateway.api.form_compiler import TOOLS, Form, FormCompiler, TextForm
from services.gateway.api.other_fields import ADJUSTED_HEADER
from services.gateway.api.outputs import OutputRoom, infill_output
from services.gateway.api.prompts import Prompt, encode_prompt, unblocked
from services.gateway.api.replies_and_chunks import Replies
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.stores.conversations import Conversations
from shared.api_keys import ApiKey
from shared.arrays import Int32, pack_int32
from shared.canvases import check_for_canvases, without_effect
from shared.edits import NO_EDITS, edit_threshold_for
from shared.messages.requests import FinishReason, Outcome, OutcomeStatus, Request
from shared.text import TextModel

DEFAULT_OUTPUT_TOKENS = 128
QUESTIONS = "questions"  # the field that gives labels by prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCompletion:
    """The wishes of a body, in the terms of a completion. Errors and headers name the body's own fields."""

    prompts: Iterable[Prompt]  # read once, one at a time: each may be as long as the body
    prompt_field: str
    n: int = 1  # choices for each prompt
    limit: tuple[str, int | None]  # the field that limits the tokens of the text, and its value
    passed: Mapping[str, Any]  # fields that the request has under the same names
    tools: ToolUse
    replies: Callable[[str, float], Replies]  # called with the id of the first request and the reply's Unix time
    keep: Callable[[str, str], Awaitable[None]] | None = None  # stores the conversation, by the request's id and cell
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
