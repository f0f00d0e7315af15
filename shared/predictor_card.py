"""The card of a step predictor: the facts that the scheduler needs without loading the predictor.

A predictor directory holds `card.json` (this module) and `model.txt` (LightGBM's text format, for the predictor).
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

    version: str  # identifies the contents of the model file
    features: list[str]  # input columns, in order
    thresholds: list[float]  # thresholds of the training runs, ascending
    tokens_per_step: list[float]  # mean at each threshold: the one-shot estimate
    update_granularity: int = 1  # tokens that a request unmasks between two predictions

    def __post_init__(self) -> None:
        if not self.thresholds or len(self.thresholds) != len(self.tokens_per_step):
            raise ValueError("thresholds and tokens_per_step must be of equal length, at least 1")
        if any(a >= b for a, b in zip(self.thresholds, self.thresholds[1:], strict=False)):
            raise ValueError(f"thresholds must ascend, got {self.thresholds}")
        if min(self.tokens_per_step) < 1 or self.update_granularity < 1:
            raise ValueError("tokens_per_step and update_granularity must be at least 1")

    def mean_tokens_per_step(self, thresholds: Float64) -> Float64:
        """Mean tokens per step at any threshold: interpolated between the card's thresholds, constant beyond them.
        The one-shot estimate of a request's steps is its output length over this.

        Source: "Step Prediction". Shapes: [c] -> [c].
        """
        return np.interp(thresholds, self.thresholds, self.tokens_per_step)


def find_predictor_card(named: str, model: Path) -> PredictorCard | None:
    """The card in the `named` directory, or if none is named in the model's; None if the model has no predictor.

    Raises: BadInput if the card is invalid, or missing where it is named.
    """
    directory = predictor_directory(named, model)
    if not named and not (directory / CARD_FILE).exists():
        return None
    return read_predictor_card(directory)


def predictor_directory(named: str, model: Path) -> Path:
    """The `named` directory of a step predictor, or if none is named that of the model."""
    return Path(named or model / "predictor")


def read_predictor_card(directory: Path) -> PredictorCard:
    """Raises: BadInput if the card is missing or invalid."""
    path = directory / CARD_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=PredictorCard)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"no predictor in {directory}: {CARD_FILE}: {error}", "predictor") from None


def write_predictor_card(directory: Path, card: PredictorCard) -> None:
    text = msgspec.json.format(msgspec.json.encode(card), indent=2)
    (directory / CARD_FILE).write_bytes(text + b"\n")
