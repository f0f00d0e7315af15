"""A predictor directory, and its card: what the scheduler must know of a step predictor without loading it.

The directory holds `card.json` (this module) and `model.txt` (LightGBM's text format, read by the predictor alone).
"""

from pathlib import Path

import msgspec
import numpy as np

from shared.arrays import Float64
from shared.errors import BadInput

CARD_FILE = "card.json"
MODEL_FILE = "model.txt"


class PredictorCard(msgspec.Struct, frozen=True, kw_only=True):
    """Written by `dilaserve train-predictor`."""

    version: str  # of the predictor: names the contents of its model file
    features: list[str]  # columns of the model, in order
    thresholds: list[float]  # ascending, those it was trained for
    tokens_per_step: list[float]  # mean at each of `thresholds`: the one-shot estimate
    update_granularity: int = 1  # newly unmasked tokens of a request between two predictions

    def __post_init__(self) -> None:
        if not self.thresholds or len(self.thresholds) != len(self.tokens_per_step):
            raise ValueError("thresholds and tokens_per_step must be of equal length, at least 1")
        if any(a >= b for a, b in zip(self.thresholds, self.thresholds[1:], strict=False)):
            raise ValueError(f"thresholds must ascend, got {self.thresholds}")
        if min(self.tokens_per_step) < 1 or self.update_granularity < 1:
            raise ValueError("tokens_per_step and update_granularity must be at least 1")

    def mean_tokens_per_step(self, thresholds: Float64) -> Float64:
        """Mean tokens unmasked by a step at any thresholds: between those of the card on a line, beyond them as at
        the nearest. A request of O output tokens then takes O / this many steps: the one-shot estimate.

        Source: "Step Prediction". Shapes: [c] -> [c].
        """
        return np.interp(thresholds, self.thresholds, self.tokens_per_step)


def read_predictor_card(directory: Path) -> PredictorCard:
    """Raises: BadInput if the card is missing or wrong."""
    path = directory / CARD_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=PredictorCard)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"no predictor in {directory}: {CARD_FILE}: {error}", "predictor") from None


def write_predictor_card(directory: Path, card: PredictorCard) -> None:
    text = msgspec.json.format(msgspec.json.encode(card), indent=2)
    (directory / CARD_FILE).write_bytes(text + b"\n")
