"""Settings of the predictor."""

from pathlib import Path

from shared.predictor_card import predictor_directory
from shared.settings import ServiceSettings


class PredictorSettings(ServiceSettings, frozen=True, kw_only=True):
    model: str = "models/demo"  # directory of the served model
    predictor: str = ""  # directory that `dilaserve train-predictor` wrote; empty: `predictor` in the model's directory

    @property
    def directory(self) -> Path:
        return predictor_directory(self.predictor, Path(self.model))
