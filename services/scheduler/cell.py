"""The configuration of the cell, by the settings of a scheduler. Pure."""

from services.scheduler.registry import find_policy
from services.scheduler.settings import SchedulerSettings
from shared.edits import NO_EDITS
from shared.errors import BadInput
from shared.messages.cell import DEFAULT_SLO_S, CellConfig, cache_of
from shared.messages.instances import ModelCard
from shared.predictor_card import PredictorCard


def cell_config(settings: SchedulerSettings, model: ModelCard, card: PredictorCard | None) -> CellConfig:
    """The configuration that the scheduler writes when it leads. Unset values follow the model and its predictor.

    Raises: BadInput if the model cannot be served with a value.
    """
    entry = find_policy(settings.policy_name)
    return CellConfig(
        model=model.name,
        policy=settings.policy_name,
        thresholds=settings.candidates,
        threshold=settings.one_threshold if entry.one_threshold else None,
        default_slo_s=settings.default_slo_s or DEFAULT_SLO_S,
        cache=cache_of(settings.cache, model),
        edit_threshold=_edit_threshold(settings, model),
        predictor=card.version if card and entry.uses_estimates else "",
    )


def _edit_threshold(settings: SchedulerSettings, model: ModelCard) -> float:
    own = settings.edit_threshold
    if own is None:
        return NO_EDITS if model.edit_threshold is None else model.edit_threshold
    if own < NO_EDITS and model.edit_threshold is None:
        message = f"DILASERVE_EDIT_THRESHOLD={own:g}: {model.name} does not change tokens; accepted: 1, or unset"
        raise BadInput(message, "edit_threshold")
    return own
