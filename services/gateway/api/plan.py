"""The plan of one body: the requests for its choices. Each kind of body has its own wishes."""

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from services.gateway.api.completion_replies import Replies
from services.gateway.api.form_compiler import TOOLS, FormCompiler, TextForm
from services.gateway.api.infill import infill_output
from services.gateway.api.other_fields import ADJUSTED_HEADER
from services.gateway.api.output_room import output_room
from services.gateway.api.prompts import Prompt, encode_prompt, unblocked
from services.gateway.api.text_forms import Form
from services.gateway.api.tool_calls.call_syntax import CallSyntax, find_call_syntax
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.stores.conversations import Conversations
from shared.api_keys import ApiKey
from shared.arrays import Int32, pack_int32
from shared.canvases import check_for_canvases, without_effect
from shared.edits import NO_EDITS, edit_threshold_for
from shared.messages.requests import FinishReason, Outcome, OutcomeStatus, Request
from shared.text import TextModel

DEFAULT_OUTPUT_TOKENS = 128
QUESTIONS = "questions"  # the field of several choices

WriteReplies = Callable[[str, float], Replies]  # of the id of the first request, and the Unix time of the reply
Keep = Callable[[str, str], Awaitable[None]]  # stores the conversation: of the request's id, and its cell


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCompletion:
    """The wishes of a body, in the terms of a completion. Errors and headers name the body's own fields."""

    prompts: Sequence[Prompt]
    prompt_field: str
    n: int = 1  # choices for each prompt
    limit: tuple[str, int | None]  # the field that limits the tokens of the text, and its value
    passed: Mapping[str, Any]  # fields that the request has under the same names
    tools: ToolUse
    replies: WriteReplies
    keep: Keep | None = None
    stop: Sequence[str] = ()
    forms: Sequence[Form] = ()  # the forms of the text that the client has given
    labels: Sequence[str] = ()  # the texts of a choice, if that is the form
    questions: Sequence[Sequence[str]] = ()  # by prompt, the texts of a choice
    suffix: str | None = None  # the text after the completion
    template: str | None = None  # the text, with holes
    alternatives: int | None = None  # of each token, with its log-probability; None: no log-probabilities
    canvas: bool = False
    left_out: Sequence[str] = ()  # fields without effect on this model

    @property
    def choices_field(self) -> str:
        """The field that asks for several choices."""
        return "n" if self.n > 1 else QUESTIONS if self.questions else self.prompt_field

    @property
    def form_field(self) -> str:
        """The field that gives the form of the text."""
        return self.forms[0].field if self.forms else QUESTIONS if self.questions else TOOLS


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

    @property
    def syntax(self) -> CallSyntax:
        """How the model calls tools."""
        return find_call_syntax(self.text.tool_template)

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
        form = await self.patterns.form_of(
            wanted.forms,
            wanted.labels if wanted.alternatives is not None else (),
            wanted.tools.form if wanted.tools.tools else None,
            wanted.tools.key,
            self.key.key_id,
        )
        forms = [TextForm(labels=labels) for labels in wanted.questions] or [form] * len(prompts)
        made = [await self._request(wanted, of, ids) for ids, of in zip(prompts, forms, strict=True)]
        seed = wanted.passed.get("seed")
        seeds = [None if seed is None else (seed + i + 2**63) % 2**64 - 2**63 for i in range(wanted.n)]
        requests = [replace(each, request_id=uuid.uuid4().hex, seed=own) for each in made for own in seeds]
        left_out = [*wanted.left_out, *form.left_out, *without_effect(requests[0], self.text.card)]
        return BodyPlan(wanted=wanted, requests=requests, left_out=left_out, adjusted=_adjusted(wanted, requests))

    async def _request(self, wanted: WantedCompletion, form: TextForm, prompt_ids: Int32) -> Request:
        """The request for a prompt, without its own id and seed."""
        text, form_field = self.text, wanted.form_field
        labels = await unblocked(partial(text.encode_choices, form.labels, form_field), sum(map(len, form.labels)))
        label_tokens = 1 + max(map(len, labels)) if labels else 0
        block_length = wanted.passed.get("block_length")
        room = output_room(text.card, len(prompt_ids), block_length, label_tokens, wanted.prompt_field)
        given = partial(infill_output, wanted.template, wanted.suffix, wanted.limit, text, room)
        infilled = await unblocked(given, len(wanted.suffix or wanted.template or ""))
        limit = wanted.limit[1]
        output_tokens = room.whole_blocks(limit or DEFAULT_OUTPUT_TOKENS)
        max_tokens = min(limit, output_tokens) if limit is not None else None
        if infilled is not None:
            output_tokens, max_tokens = infilled.tokens, infilled.text_tokens
        elif longest := label_tokens or form.max_tokens:
            output_tokens = min(room.whole_blocks(longest), output_tokens)
        fields: dict[str, Any] = {
            "request_id": "unnamed",
            "priority": self.key.usual_priority,
            **wanted.passed,
            "prompt_ids": pack_int32(prompt_ids),
            "output_tokens": output_tokens,
            "max_tokens": max_tokens,
            "block_length": room.block_length,
            "stop": list(wanted.stop),
            "pattern": form.pattern,
            "choices": list(form.labels),
            "pinned": infilled.pinned if infilled is not None else b"",
            "logprobs": wanted.alternatives is not None,
            "top_logprobs": wanted.alternatives or 0,
            "guesses": wanted.canvas,
            "key": self.key.key_id,
        }
        request = Request(**fields)
        text.check_choices(request, labels, output_tokens, form_field)
        check_for_canvases(request, text.card, form_field)
        edit_threshold_for(request, text.card, NO_EDITS)
        return request


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
