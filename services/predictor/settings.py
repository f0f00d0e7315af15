"""Settings of the predictor."""

from pathlib import Path

from shared.settings import ServiceSettings


class PredictorSettings(ServiceSettings, frozen=True, kw_only=True):
    model: str = "models/demo"  # directory of the served model
    predictor: str = ""  # directory that `dilaserve train-predictor` wrote; empty: `predictor` in the model's directory

    @property
    def directory(self) -> Path:
        return Path(self.predictor or Path(self.model) / "predictor")
