"""A request's steps as a client reads them: one object a step. Pure."""

import math
from typing import Any

from shared.arrays import unpack_float32, unpack_int32
from shared.messages.decisions import StepDecisions
from shared.messages.steps import StepKind

Json = dict[str, Any]


def step_list(decisions: StepDecisions | None, slo_s: float) -> list[Json]:
    """What was decided for each step, and by which numbers.

    Units: milliseconds; `t_ms` from arrival to when the step was sent, `time_left_ms` as predicted from then to the
    last token (None: not predicted), `slo_left_ms` from then to the deadline.
    """
    if decisions is None:
        return []
    columns = zip(
        unpack_float32(decisions.at_s).tolist(),
        unpack_int32(decisions.blocks).tolist(),
        unpack_int32(decisions.kinds).tolist(),
        unpack_float32(decisions.thresholds).tolist(),
        unpack_float32(decisions.allowed).tolist(),
        unpack_float32(decisions.time_left_s).tolist(),
        unpack_int32(decisions.placed_on).tolist(),
        unpack_int32(decisions.batch_requests).tolist(),
        unpack_int32(decisions.batch_tokens).tolist(),
        unpack_float32(decisions.step_latency_s).tolist(),
        strict=True,
    )
    return [
        {
            "step": step,
            "t_ms": round(at_s * 1000, 3),
            "block": block,
            "kind": StepKind(kind).name.lower(),
            "threshold": round(threshold, 6),
            "allowed_threshold": round(allowed, 6),
            "instance": decisions.instances[place],
            "batch_requests": requests,
            "batch_tokens": tokens,
            "step_latency_ms": round(latency_s * 1000, 3),
            "time_left_ms": None if math.isnan(left_s) else round(left_s * 1000, 3),
            "slo_left_ms": round((slo_s - at_s) * 1000, 3),
        }
        for step, (at_s, block, kind, threshold, allowed, left_s, place, requests, tokens, latency_s) in enumerate(
            columns, decisions.first_step
        )
    ]
