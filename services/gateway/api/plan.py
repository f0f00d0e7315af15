"""The plan of one body: the requests for its choices."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from services.gateway.api.form_compiler import FormCompiler, TextForm
from services.gateway.api.other_fields import ADJUSTED_HEADER
from services.gateway.api.prompts import encode_prompt
from services.gateway.api.wanted_completion import WantedCompletion
from services.gateway.stores.conversations import Conversations
from shared.api_keys import ApiKey
from shared.arrays import Int32
from shared.canvases import without_effect
from shared.messages.requests import FinishReason, Outcome, OutcomeStatus, Request
from shared.text import TextModel


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
