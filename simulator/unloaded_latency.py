"""The latency of requests that are alone in the cluster, from which default SLOs follow."""

import numpy as np

from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.steps_table import StepsTable
from simulator.workload import ArrivalTrace

THRESHOLD = 0.9  # the paper's default
SLO_MULTIPLE = 5.0  # "Experimental Setup"


def unloaded_latency_s(
    workload: ArrivalTrace, profile: LatencyProfile, steps: StepsTable, *, caching: bool, block_length: int = 32
) -> float:
    """Mean latency, in seconds, of the workload's requests, each alone on the profile's smallest TP degree.

    Each block takes block_length / tokens_per_step steps on average; with a cache the first of them recomputes.
    """
    tp = profile.tp_degrees[0]
    block_steps = block_length / float(steps.tokens_at(np.array(THRESHOLD)))
    recompute_s = profile.latency_s(tp, workload.prompt_tokens + workload.output_tokens, StepKind.RECOMPUTE)
    cache_s = profile.latency_s(tp, block_length, StepKind.CACHE) if caching else recompute_s
    blocks = workload.output_tokens / block_length
    return float((blocks * (recompute_s + (block_steps - 1) * cache_s)).mean())
