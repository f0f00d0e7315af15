"""Builds the scheduler's core from its settings, for the live service and for the simulator."""

from pathlib import Path

import numpy as np

from services.scheduler.core import CoreSettings, SchedulerCore
from services.scheduler.policies import MigrationPolicy, Policy
from services.scheduler.policies.dilaserve import DiLaServePolicy
from services.scheduler.policies.fixed import FixedThresholdPolicy
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.step_estimates import StepEstimates
from shared.errors import BadInput
from shared.predictor_card import PredictorCard, read_predictor_card
from shared.text import TextModel


def build_core(
    settings: SchedulerSettings,
    text: TextModel | None,
    card: PredictorCard | None,
    epoch: int,
    *,
    keeps_records: bool = True,
    estimate_interval_s: float = 0.0,
) -> SchedulerCore:
    """Build the state machine with its policy.

    Without `text`, as in a simulation, no output ends early. Without a predictor's `card`, one token per step counts.
    """
    thresholds = candidates(settings)
    means = np.ones(len(thresholds)) if card is None else card.mean_tokens_per_step(np.array(thresholds))
    ending_text = text if settings.stop_at_eos else None
    core_settings = CoreSettings(
        epoch=epoch,
        mask_token_id=text.card.mask_token_id if text else 0,
        thresholds=thresholds,
        tokens_per_step=tuple(means.tolist()),
        caching=settings.cache != "none",
        granularity=card.update_granularity if card else 1,
        lookahead=settings.lookahead,
        end_ids=tuple(sorted(ending_text.end_ids)) if ending_text else (),
        step_timeout_s=settings.step_timeout_s,
        keeps_records=keeps_records,
        estimate_interval_s=estimate_interval_s,
    )
    text_ended = ending_text.ended if ending_text else lambda _output_ids, _stop: False
    return SchedulerCore(core_settings, lambda estimates: build_policy(settings, estimates), text_ended)


def build_policy(settings: SchedulerSettings, estimates: StepEstimates) -> Policy:
    """Build the policy that the settings name."""
    if settings.policy == "dilaserve":
        return DiLaServePolicy(
            candidates=np.array(candidates(settings)),
            estimates=estimates,
            moves=settings.moves or MigrationPolicy.AT_RECOMPUTE,
            uses_estimates=settings.estimates == "predictor",
            load_control=settings.load_control,
            margin_steps=settings.margin_steps,
            guaranteed_priority=settings.guaranteed_priority,
        )
    default = MigrationPolicy.AT_RECOMPUTE if settings.policy == "llumnix" else MigrationPolicy.NEVER
    return FixedThresholdPolicy(settings.threshold, settings.moves or default)


def read_card(settings: SchedulerSettings, model: Path) -> PredictorCard | None:
    """Read the predictor's card. Returns: None if the policy uses no estimates. Raises: BadInput if it is missing."""
    if settings.policy != "dilaserve":
        return None
    try:
        return read_predictor_card(Path(settings.predictor or model / "predictor"))
    except BadInput as error:
        hint = "the dilaserve policy needs it: make one with `dilaserve train-predictor`, or use another policy"
        raise BadInput(f"{error.message}; {hint}", "predictor") from None


def candidates(settings: SchedulerSettings) -> tuple[float, ...]:
    """The candidate thresholds, ascending. Raises: BadInput if the settings name none."""
    if not settings.thresholds:
        raise BadInput("DILASERVE_THRESHOLDS must name at least one threshold", "thresholds")
    return tuple(sorted(set(settings.thresholds)))
