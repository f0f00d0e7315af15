"""Queries that the predictor refuses."""

import msgspec
import numpy as np
import pytest

from services.predictor.queries import read_query
from shared.arrays import pack_float32, pack_int32
from shared.errors import BadInput
from shared.messages.predict import PredictSteps

GOOD = PredictSteps(
    features=pack_float32(np.zeros((2, 10))),
    thresholds=pack_float32([0.5, 0.7, 0.9]),
    masks_left=pack_int32([64, 1]),
    blocks_left=pack_int32([2, 1]),
)


def test_a_query_has_one_row_per_request() -> None:
    query = read_query(GOOD)
    assert query.features.shape == (2, 10)
    assert query.masks_left.tolist() == [64, 1]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"features": b"12345"}, "multiple"),
        ({"features": pack_float32(np.zeros(19))}, "reshape"),
        ({"features": pack_float32(np.full((2, 10), np.nan))}, "finite"),
        ({"thresholds": pack_float32([np.inf])}, "finite"),
        ({"thresholds": pack_float32(np.zeros(100_001))}, "at most"),
        ({"masks_left": pack_int32([64])}, "different lengths"),
        ({"blocks_left": pack_int32([2, 2])}, "blocks_left"),
        ({"blocks_left": pack_int32([2, -1])}, "blocks_left"),
    ],
)
def test_inconsistent_columns_are_rejected(wrong: dict[str, bytes], error: str) -> None:
    with pytest.raises(BadInput, match=error):
        read_query(msgspec.structs.replace(GOOD, **wrong))
