"""Messages to and from the step predictor. Columns of equal length, raw bytes."""

import msgspec


class PredictSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> predictor: how many steps do these n requests have left under each of these c thresholds?

    Subject: dilaserve.<cell>.predict. Core NATS request/reply, queue group `predictor`: one of the predictors
    answers. What cannot be read, or would not fit a reply, gets no answer.
    """

    features: bytes  # float32 [n, 10], columns and their order: shared.features.STATE_FEATURES
    thresholds: bytes  # float32 [c]
    masks_left: bytes  # int32 [n]: an answer is at most this
    blocks_left: bytes  # int32 [n], blocks with masks, the current one included: an answer is at least this


class StepsLeft(msgspec.Struct, frozen=True, kw_only=True):
    """Predictor -> scheduler: the reply to PredictSteps."""

    steps_left: bytes  # float32 [n, c], denoising steps; at least 1 while masks are left
    predictor: str  # which predictor answered: the version on its card
