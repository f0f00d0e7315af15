"""Checked queries to the predictor: the states of n requests and c thresholds."""

from dataclasses import dataclass

import numpy as np

from shared.arrays import Float32, Int32, unpack_float32, unpack_int32
from shared.errors import BadInput
from shared.messages.predict import PredictSteps
from shared.predictor_features import STATE_FEATURES

MAX_ANSWERS = 200_000  # n * c; a larger reply would exceed NATS's default message limit, 1 MiB


@dataclass(frozen=True, slots=True)
class Query:
    """Requests between two steps, each to predict under every threshold."""

    features: Float32  # [n, 10], STATE_FEATURES
    thresholds: Float32  # [c]
    masks_left: Int32  # [n], tokens
    blocks_left: Int32  # [n], blocks with masks, the current one included


def read_query(message: PredictSteps) -> Query:
    """Raises: BadInput if the columns differ in length or hold impossible values."""
    try:
        query = Query(
            unpack_float32(message.features).reshape(-1, len(STATE_FEATURES)),
            unpack_float32(message.thresholds),
            unpack_int32(message.masks_left),
            unpack_int32(message.blocks_left),
        )
    except ValueError as error:
        raise BadInput(f"columns of PredictSteps: {error}") from None
    n, c = len(query.features), len(query.thresholds)
    if not n == len(query.masks_left) == len(query.blocks_left):
        raise BadInput("columns of PredictSteps are of different lengths")
    if n * c > MAX_ANSWERS:
        raise BadInput(f"{n} requests under {c} thresholds; at most {MAX_ANSWERS} answers together")
    if not (np.isfinite(query.features).all() and np.isfinite(query.thresholds).all()):
        raise BadInput("features and thresholds must be finite")
    if (query.blocks_left < 0).any() or (query.blocks_left > query.masks_left).any():
        raise BadInput("blocks_left must be in 0..masks_left")
    return query
