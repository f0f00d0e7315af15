"""Builds the scheduler's core from its settings, for the live service and for the simulator."""

from functools import partial
from pkgutil import resolve_name
from typing import Any

import numpy as np

from services.scheduler.core import CoreSettings, SchedulerCore
from services.scheduler.policies.policy import Policy
from services.scheduler.registry import find_policy
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.step_estimates import StepEstimates
from shared.messages.cell import is_exact
from shared.predictor_card import PredictorCard
from shared.text import TextModel

NO_TOKEN = -1
ESTIMATE_INTERVAL_S = 0.05  # between two requests to the step predictor: a few steps of the smallest model


def build_policy(settings: SchedulerSettings, estimates: StepEstimates, **options: Any) -> Policy:
    """The policy that the settings name. `options` are fields of its class, for simulations."""
    policy: type[Policy] = resolve_name(find_policy(settings.policy_name).policy)
    return policy.build(settings, estimates, **options)


def build_core(
    settings: SchedulerSettings,
    text: TextModel | None,
    card: PredictorCard | None,
    epoch: int,
    *,
    asks_predictor: bool,
    keeps_records: bool = True,
    **policy_options: Any,
) -> SchedulerCore:
    """Build the state machine with its policy.

    Without `text`, as in a simulation, no output ends early. Without a predictor's `card`, one token per step counts.
    `policy_options`: see `build_policy`.
    """
    thresholds = settings.candidates
    means = np.ones(len(thresholds)) if card is None else card.mean_tokens_per_step(np.array(thresholds))
    ending_text = text if settings.stop_at_eos else None
    core_settings = CoreSettings(
        epoch=epoch,
        mask_token_id=text.card.mask_token_id if text else NO_TOKEN,
        thresholds=thresholds,
        tokens_per_step=tuple(means.tolist()),
        caching=settings.cache != "none",
        exact_cache=is_exact(settings.cache),
        canvas_steps=text.card.canvas_steps if text else 0,
        granularity=card.update_granularity if card else 1,
        lookahead=settings.lookahead,
        vocab_size=text.card.vocab_size if text else 1 << 31,
        end_ids=tuple(sorted(ending_text.end_ids)) if ending_text else (),
        step_timeout_s=settings.step_timeout_s,
        keeps_records=keeps_records,
        learns_difficulty=find_policy(settings.policy_name).learns_difficulty,
        asks_predictor=asks_predictor,
        estimate_interval_s=ESTIMATE_INTERVAL_S,
        shed=settings.shed,
    )
    text_ended = ending_text.ended if ending_text else lambda _output_ids, _request, _checked: False
    make_policy = partial(build_policy, settings, **policy_options)
    return SchedulerCore(core_settings, make_policy, text_ended)
