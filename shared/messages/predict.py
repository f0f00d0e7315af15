"""Messages to and from the step predictor. Columns of equal length, raw bytes."""

import msgspec


class PredictSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> predictor: predict the remaining steps of n requests at each of c thresholds.

    Subject: dilaserve.<cell>.predict. Core NATS request/reply, queue group `predictor`: one of the predictors
    replies. An invalid query, or one with too long a reply, gets no reply.
    """

    features: bytes  # float32 [n, 10], columns and their order: shared.predictor_features.STATE_FEATURES
    thresholds: bytes  # float32 [c]
    masks_left: bytes  # int32 [n]: upper bound of a prediction
    blocks_left: bytes  # int32 [n], blocks with masks, with the current one: lower bound of a prediction


class StepsLeft(msgspec.Struct, frozen=True, kw_only=True):
    """Predictor -> scheduler: the reply to PredictSteps."""

    steps_left: bytes  # float32 [n, c], denoising steps; at least 1 while masks are left
    predictor: str  # version on the predictor's card
