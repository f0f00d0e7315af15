"""Records of a cell's model, by which a worker notices damaged weights and a device that computes wrong."""

import msgspec
import numpy as np

from shared.arrays import unpack_float32


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

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.confidences) or len(self.tokens) % 4:
            sizes = f"{len(self.tokens)} and {len(self.confidences)} bytes"
            raise ValueError(f"tokens and confidences must be equally many numbers of 4 bytes, got {sizes}")
        if not np.isfinite(unpack_float32(self.confidences)).all():
            raise ValueError("a confidence is not finite")
