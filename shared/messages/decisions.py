"""The scheduler's decisions for the steps of a request, with the numbers they are based on."""

import msgspec

from shared.arrays import unpack_float32

MAX_DECISIONS = 512  # recorded decisions per request


class StepDecisions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Part of an outcome: n consecutive steps from `first_step` on (after a crash, the new scheduler's steps).

    Columns of equal length n, at most MAX_DECISIONS, raw little-endian bytes.
    """

    first_step: int = 0
    instances: list[str] = []  # instances of the request, in order of first use
    at_s: bytes = b""  # float32 [n], send time, seconds from arrival
    blocks: bytes = b""  # int32 [n], index of the block
    kinds: bytes = b""  # int32 [n], StepKind
    thresholds: bytes = b""  # float32 [n]
    allowed: bytes = b""  # float32 [n], highest threshold that load control allowed
    time_left_s: bytes = b""  # float32 [n], predicted seconds to the last token; NaN: no prediction
    placed_on: bytes = b""  # int32 [n], index into `instances`
    batch_tokens: bytes = b""  # int32 [n], tokens of all requests on the instance
    batch_requests: bytes = b""  # int32 [n], requests on the instance
    # float32 [n], expected from one step to the next; by `paper` and `fixed`, a recompute's
    step_latency_s: bytes = b""

    @property
    def first_sent_s(self) -> float | None:
        """Time from arrival to the first step; None: an earlier scheduler sent it, or the record is damaged."""
        return float(unpack_float32(self.at_s[:4])[0]) if self.first_step == 0 and len(self.at_s) >= 4 else None
