"""The `steps` of a stored request. Pure."""

import math

import numpy as np

from services.gateway.api.replies_and_chunks import Json
from shared.arrays import unpack_float32, unpack_int32
from shared.messages.decisions import StepDecisions
from shared.messages.steps import StepKind


def step_list(steps: StepDecisions | None, slo_s: float) -> list[Json]:
    """One object per step: its decision and the numbers behind it.

    Units: ms. `t_ms` is from arrival until the step was sent; from then, `time_left_ms` is predicted to the last token
    (None: no prediction) and `slo_left_ms` is to the deadline. A damaged record has no steps.
    """
    try:
        return [] if steps is None else _rows(steps, slo_s)
    except (ValueError, IndexError):
        return []


def _rows(steps: StepDecisions, slo_s: float) -> list[Json]:
    """Raises: ValueError or IndexError if the columns do not fit together."""
    floats = (steps.at_s, steps.thresholds, steps.allowed, steps.time_left_s, steps.step_latency_s)
    integers = (steps.blocks, steps.kinds, steps.placed_on, steps.batch_requests, steps.batch_tokens)
    columns = [unpack_float32(each).tolist() for each in floats] + [unpack_int32(each).tolist() for each in integers]
    if not np.isfinite(columns[0] + columns[1] + columns[2] + columns[4]).all():
        raise ValueError("a number is not finite")
    rows = enumerate(zip(*columns, strict=True), steps.first_step)
    return [
        {
            "step": step,
            "t_ms": round(at_s * 1000, 3),
            "block": block,
            "kind": StepKind(kind).name.lower(),
            "threshold": round(threshold, 6),
            "allowed_threshold": round(allowed, 6),
            "instance": steps.instances[instance],
            "batch_requests": requests,
            "batch_tokens": tokens,
            "step_latency_ms": round(latency_s * 1000, 3),
            "time_left_ms": round(left_s * 1000, 3) if math.isfinite(left_s) else None,
            "slo_left_ms": round((slo_s - at_s) * 1000, 3),
        }
        for step, (at_s, threshold, allowed, left_s, latency_s, block, kind, instance, requests, tokens) in rows
    ]
