"""The configuration of a cell by the environment of its scheduler."""

from collections.abc import Mapping

from services.scheduler.cell import cell_config
from services.scheduler.settings import SchedulerSettings
from shared.messages.cell import CellConfig
from shared.model_files import default_model_name, find_model, read_model_card
from shared.predictor_card import find_predictor_card
from shared.settings import read_settings


def cell_config_of(environ: Mapping[str, str]) -> CellConfig:
    """The configuration that a scheduler with this environment writes. Raises: BadInput if it is invalid."""
    settings = read_settings(SchedulerSettings, environ)
    directory = find_model(settings.model, weights=False)
    model = read_model_card(directory, settings.model_name or default_model_name(settings.model))
    return cell_config(settings, model, find_predictor_card(settings.predictor, directory))
