"""The predictor's settings."""

from pathlib import Path

from shared.settings import ServiceSettings


class PredictorSettings(ServiceSettings, frozen=True, kw_only=True):
    """Variables: DILASERVE_ and the field's name in capitals."""

    model: str = "models/demo"  # directory of the model that is served
    predictor: str = ""  # written by `dilaserve train-predictor`; empty: `predictor` in the model's directory

    @property
    def directory(self) -> Path:
        return Path(self.predictor or Path(self.model) / "predictor")
