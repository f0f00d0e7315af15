"""Derives the default SLO of a stack before its start, and reports the model, the policy, its estimates and what is
missing."""

import os
from collections.abc import Iterator
from dataclasses import replace

from dilaserve.prediction.suggested_slo import TYPICAL_TOKENS, alone_s, suggested_slo_s
from dilaserve.stack.options import Stack
from dilaserve.stack.services import predictor_directory
from dilaserve.stack.up_options import DEMO_MODEL
from services.gateway.api.thoughts import thoughts_of
from services.gateway.api.tool_calls.call_syntax import find_call_syntax
from services.scheduler.registry import find_policy
from services.worker.model.families import read_config
from shared.errors import BadInput
from shared.messages.cell import CellConfig, cache_of
from shared.model_files import added_tokens_of, chat_template_of, read_json, read_model_card, read_model_config
from shared.predictor_card import CARD_FILE, read_predictor_card
from shared.profile import read_profile
from shared.settings import PREFIX


def with_default_slo(stack: Stack) -> Stack:
    """The stack with an SLO that follows from its profile, if it has one and nobody has chosen an SLO.

    The demo model keeps the SLO that its documents name.
    """
    options, predictor = stack.options, predictor_directory(stack)
    is_chosen = options.default_slo_s is not None or os.environ.get(f"{PREFIX}DEFAULT_SLO_S")
    if is_chosen or options.profile is None or stack.model == DEMO_MODEL or not (predictor / CARD_FILE).is_file():
        return stack
    model, card = read_model_card(stack.model, stack.model_name), read_predictor_card(predictor)
    tokens, cache = min(TYPICAL_TOKENS, model.max_length // 2), cache_of(options.cache, model)
    try:
        latency_s = alone_s(read_profile(options.profile), card, model, tokens, tokens, cache)
    except BadInput:  # the profile lacks a kind of step
        return stack
    return replace(stack, options=replace(options, default_slo_s=suggested_slo_s(latency_s)))


def summary(stack: Stack, given: Stack, config: CellConfig) -> Iterator[str]:
    """One line for each fact. `given`: the stack before `with_default_slo`."""
    model = read_config(stack.model)
    block = "canvases" if model.canvas else "blocks"
    kind = f"block-causal, {block} of {model.block_length}" if model.is_block_causal else "attention in both directions"
    yield f"Model:          {config.model}: {model.family} ({kind}), at most {model.max_length} tokens"
    if model.can_edit:
        like = "LLaDA2.1" if config.edit_threshold < 1 else "LLaDA2.0; LLaDA2.1 needs 0.5"
        yield f"Edits:          --edit-threshold {config.edit_threshold:g}, as in {like}"
    yield f"Policy:         {config.policy}, {_estimates(config)}"
    origin = " (by the profile)" if stack != given else ""
    yield f"Default SLO:    {config.default_slo_s:g} s{origin}"
    if stack.reconfigures:
        yield "Instances:      planned again as the load changes (--no-reconfigure: they stay)"
    names, ends = added_tokens_of(stack.model), read_model_config(stack.model)["eos_token_id"]
    yield f"Ends of text:   {', '.join(names.get(end, str(end)) for end in ends)}"
    template, generation = chat_template_of(stack.model), read_json(stack.model / "generation_config.json")
    if template:
        yield f"Tools:          {find_call_syntax(template).about}"
        if thoughts := thoughts_of(template):
            yield f"Thoughts:       between {thoughts.opening} and {thoughts.closing}; replies have them apart"
    else:
        yield "Chat template:  none, so chats are refused; /v1/completions works"
    named = [f"{name} {generation[name]}" for name in ("temperature", "top_p", "top_k") if generation.get(name)]
    if model.canvas is not None:
        origin = "the files" if generation else "the authors' code, as generation_config.json is missing"
        yield f"Sampling:       at most {model.canvas.max_steps} steps of a canvas, by {origin}; images are refused"
    elif named:
        yield f"Sampling:       greedy for requests that name no temperature; the checkpoint names {', '.join(named)}"
    missing = []
    if not config.predictor and find_policy(config.policy).uses_estimates:
        missing.append("a step predictor")
    if stack.options.profile is None:
        missing.append("a latency profile, so each instance measures a quick one")
    if missing and stack.model != DEMO_MODEL:
        yield f"Missing:        {'; '.join(missing)}. `dilaserve tune` makes both"


def _estimates(config: CellConfig) -> str:
    if not find_policy(config.policy).uses_estimates:
        return f"the same threshold {config.threshold} for all requests: deadlines do not change it"
    if config.predictor:
        return f"steps left by the step predictor {config.predictor}"
    return "steps left by one-shot estimates, corrected by each request's own steps"
