"""The predictor's card: reading, interpolation, validation."""

import json
from pathlib import Path

import numpy as np
import pytest

from shared.errors import BadInput
from shared.predictor_card import CARD_FILE, PredictorCard, read_predictor_card, write_predictor_card

CARD = PredictorCard(
    version="abc", features=["a"], thresholds=[0.5, 0.9], tokens_per_step=[4.0, 2.0], update_granularity=8
)


def test_a_card_round_trips(tmp_path: Path) -> None:
    write_predictor_card(tmp_path, CARD)
    assert read_predictor_card(tmp_path) == CARD


def test_tokens_per_step_are_interpolated_and_constant_beyond_the_thresholds() -> None:
    means = CARD.mean_tokens_per_step(np.array([0.1, 0.5, 0.7, 0.9, 1.0]))
    np.testing.assert_allclose(means, [4, 4, 3, 2, 2])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"tokens_per_step": [4.0]}, "equal length"),
        ({"thresholds": [0.9, 0.5]}, "must ascend"),
        ({"update_granularity": 0}, "at least 1"),
        ({"tokens_per_step": [0.0, 2.0]}, "at least 1"),
        ({"version": 7}, "Expected"),
    ],
)
def test_an_invalid_card_is_rejected_in_one_line(tmp_path: Path, wrong: dict[str, object], error: str) -> None:
    write_predictor_card(tmp_path, CARD)
    path = tmp_path / CARD_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(BadInput, match=error):
        read_predictor_card(tmp_path)


def test_a_directory_without_a_card_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no predictor in"):
        read_predictor_card(tmp_path)
