"""The steps of a stored request."""

import numpy as np

from services.gateway.api.step_details import step_list
from shared.arrays import pack_float32, pack_int32
from shared.messages.decisions import StepDecisions
from shared.messages.steps import StepKind

DECISIONS = StepDecisions(
    first_step=3,
    instances=["a-1", "b-1"],
    at_s=pack_float32([0.5, 0.75]),
    blocks=pack_int32([1, 1]),
    kinds=pack_int32([StepKind.RECOMPUTE, StepKind.CACHE]),
    thresholds=pack_float32([0.7, 0.6]),
    allowed=pack_float32([0.9, 0.6]),
    time_left_s=pack_float32([0.25, np.nan]),
    placed_on=pack_int32([1, 0]),
    batch_tokens=pack_int32([96, 192]),
    batch_requests=pack_int32([1, 2]),
    step_latency_s=pack_float32([0.015625, 0.03125]),
)


def test_each_step_is_reported_with_times_in_milliseconds() -> None:
    first, second = step_list(DECISIONS, slo_s=2.0)
    assert first == {
        "step": 3,
        "t_ms": 500.0,
        "block": 1,
        "kind": "recompute",
        "threshold": 0.7,
        "allowed_threshold": 0.9,
        "instance": "b-1",
        "batch_requests": 1,
        "batch_tokens": 96,
        "step_latency_ms": 15.625,
        "time_left_ms": 250.0,
        "slo_left_ms": 1500.0,
    }
    assert (second["step"], second["kind"], second["instance"]) == (4, "cache", "a-1")


def test_missing_predictions_are_null() -> None:
    assert step_list(DECISIONS, slo_s=2.0)[1]["time_left_ms"] is None
