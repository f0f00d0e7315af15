"""Derives the default SLO of a stack before its start, and reports the model, the policy, its estimates and what is
missing."""

import os
from collections.abc import Iterator
from dataclasses import replace

from dilaserve.prediction.suggested_slo import alone_s, suggested_slo_s, typical_tokens
from dilaserve.stack.options import Stack
from dilaserve.stack.services import predictor_directory
from dilaserve.stack.up_options import DEMO_MODEL
from services.scheduler.registry import find_policy
from services.worker.model.families import read_config
from shared.errors import BadInput
from shared.messages.cell import CellConfig, cache_of
from shared.model_card import read_model_card
from shared.model_files import has_chat_template, read_json
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
    tokens, cache = typical_tokens(model), cache_of(options.cache, model.block_length)
    try:
        latency_s = alone_s(read_profile(options.profile), card, model, tokens, tokens, cache)
    except BadInput:  # the profile lacks a kind of step
        return stack
    return replace(stack, options=replace(options, default_slo_s=suggested_slo_s(latency_s)))


def summary(stack: Stack, given: Stack, config: CellConfig) -> Iterator[str]:
    """One line for each fact. `given`: the stack before `with_default_slo`."""
    model = read_config(stack.model)
    kind = f"block-causal, blocks of {model.block_length}" if model.is_block_causal else "attention in both directions"
    yield f"Model:          {config.model}: {model.family} ({kind}), at most {model.max_length} tokens"
    yield f"Policy:         {config.policy}, {_estimates(config)}"
    origin = " (by the profile)" if stack != given else ""
    yield f"Default SLO:    {config.default_slo_s:g} s{origin}"
    if stack.reconfigures:
        yield "Instances:      planned again as the load changes (--no-reconfigure: they stay)"
    if not has_chat_template(stack.model):
        yield "Chat template:  none, so chats are refused; /v1/completions works"
    generation = read_json(stack.model / "generation_config.json")
    if named := [f"{name} {generation[name]}" for name in ("temperature", "top_p", "top_k") if generation.get(name)]:
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
