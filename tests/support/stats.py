"""A scheduler's message about itself."""

import time
from typing import Any

from shared.messages.stats import ClusterLoad, InstanceLoad, SchedulerStats


def stats(**changes: Any) -> SchedulerStats:
    """Of a cell with the one instance of `AnsweringScheduler`."""
    load = InstanceLoad(
        instance_id="worker-test",
        open=True,
        requests=4,
        max_requests=64,
        tokens=300,
        max_tokens=8192,
        step_latency_s=0.012,
    )
    fields: dict[str, Any] = {
        "at_s": time.time(),
        "epoch": 1,
        "policy": "dilaserve",
        "thresholds": [0.5, 0.9],
        "window_s": 30.0,
        "active": 4,
        "deferred": 0,
        "steps_in_flight": 4,
        "arrived": 10,
        "completed": 6,
        "failed": 0,
        "cancelled": 0,
        "migrations": 0,
        "steps": 60,
        "tokens": 600,
        "predictions": 10,
        "predictor_fallbacks": 0,
        "rps": 1.5,
        "completed_per_s": 1.4,
        "tokens_per_s": 90.0,
        "steps_per_s": 9.0,
        "slo_attainment": 0.95,
        "mean_threshold": 0.8,
        "latency_p50_s": 0.4,
        "latency_p99_s": 1.2,
        "cycles_per_s": 20.0,
        "cycle_mean_s": 0.001,
        "cycle_max_s": 0.004,
        "instances": [load],
    }
    return SchedulerStats(**(fields | changes))


def loaded_stats(at_s: float, least_tokens: float | None = 0.0, *, caching: bool = False) -> SchedulerStats:
    """Of a cell that computes 1000 tokens a second and has so many to do; None: nothing is active."""
    load = None
    if least_tokens is not None:
        load = ClusterLoad(
            least_tokens=least_tokens,
            committed_tokens=least_tokens,
            capacity_tokens=5000.0,
            throughput_tokens_per_s=1000.0,
        )
    return stats(at_s=at_s, load=load, tokens_per_step=[8.0, 2.0], caching=caching)
