"""A workload and a profile to plan for, with defaults for all fields."""

from itertools import product
from typing import Any

import msgspec

from services.reconfigurator.planning.plan_input import Workload
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile

# A step takes 20 ms and 1 ms more for every 20 tokens, on two GPUs 0.6 and on four 0.4 of that.
PROFILE = LatencyProfile.from_rows(
    (tp, batch, kind, share * (0.020 + batch / 20_000))
    for (tp, share), batch, kind in product([(1, 1.0), (2, 0.6), (4, 0.4)], [32, 256, 2048], StepKind)
)


def workload(**changes: Any) -> Workload:
    """One class of 100 + 256 tokens, 1 request a second, 10 seconds each, on two nodes of four GPUs."""
    fields = {
        "slo_s": 10.0,
        "thresholds": [0.5, 0.7, 0.9],
        "tp_degrees": [1, 2, 4],
        "batch_sizes": [32, 256, 2048],
        "tokens_per_step": {0.5: 6.0, 0.7: 4.0, 0.9: 2.0},
        "block_length": 32,
        "nodes": [4, 4],
        "classes": [a_class()],
    }
    return msgspec.convert(fields | changes, Workload)


def a_class(**changes: Any) -> dict[str, Any]:
    return {"name": "chat", "prompt_tokens": 100, "output_tokens": 256, "rps": 1.0} | changes
