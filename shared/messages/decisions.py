"""What the scheduler decided for each step of a request, and the numbers it judged by."""

import msgspec

MAX_DECISIONS = 512  # steps of one request whose decisions are kept


class StepDecisions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Part of an outcome: n consecutive steps, from `first_step` on (a scheduler after a crash begins with its own).

    Columns of equal length n, at most MAX_DECISIONS, raw little-endian bytes.
    """

    first_step: int = 0
    instances: list[str] = []  # those the request was placed on, in the order of their first use
    at_s: bytes = b""  # float32 [n], when the step was sent, seconds from arrival
    blocks: bytes = b""  # int32 [n], index of the block
    kinds: bytes = b""  # int32 [n], StepKind
    thresholds: bytes = b""  # float32 [n]
    allowed: bytes = b""  # float32 [n], the highest threshold that load control left to the request
    time_left_s: bytes = b""  # float32 [n], predicted from then to the last token; NaN: the policy predicts none
    placed_on: bytes = b""  # int32 [n], index into `instances`
    batch_tokens: bytes = b""  # int32 [n], tokens of all requests on the instance, this one's included
    batch_requests: bytes = b""  # int32 [n], requests on the instance, this one included
    step_latency_s: bytes = b""  # float32 [n], of a recompute step of that batch, by the instance's profile
