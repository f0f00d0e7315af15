"""Records of a cell's model, by which a worker notices damaged weights and a device that computes wrong."""

import msgspec


class WeightsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> later workers: the weights that the cell serves.

    KV bucket: models, key = weights.<hash of the model's name>. Does not expire.
    """

    model: str  # name
    sha256: str  # of the weight files, hex


class CanaryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> later workers: the predictions of the canary. Shapes: both [R], the batch's masks.

    KV bucket: models, key = canary.<hash of all facts that they depend on>. Does not expire.
    """

    tokens: bytes  # int32
    confidences: bytes  # float32
