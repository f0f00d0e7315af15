"""The latency of requests that are alone in the cluster, from which default SLOs follow."""

import numpy as np

from shared.messages.steps import StepKind
from shared.profile import LatencyProfile
from simulator.steps_table import StepsTable
from simulator.workload import ArrivalTrace

THRESHOLD = 0.9  # the paper's default
SLO_MULTIPLE = 5.0  # "Experimental Setup"


def unloaded_latency_s(
    workload: ArrivalTrace,
    profile: LatencyProfile,
    steps: StepsTable,
    *,
    caching: bool,
    exact: bool = False,
    block_length: int = 32,
) -> float:
    """Mean latency, in seconds, of the workload's requests, each alone on the profile's smallest TP degree.

    Each block takes block_length / tokens_per_step steps on average; with a cache the first of them recomputes, with an
    exact one only that of the first block, up to its end.
    """
    tp = profile.tp_degrees[0]
    block_steps = block_length / float(steps.tokens_at(np.array(THRESHOLD)))
    blocks = workload.output_tokens / block_length
    if exact:
        first_s = profile.latency_s(tp, workload.prompt_tokens + block_length, StepKind.RECOMPUTE)
        later_s, two_s = (profile.latency_s(tp, count * block_length, StepKind.CACHE) for count in (1, 2))
        return float((first_s + (blocks - 1) * two_s + blocks * (block_steps - 1) * later_s).mean())
    recompute_s = profile.latency_s(tp, workload.prompt_tokens + workload.output_tokens, StepKind.RECOMPUTE)
    cache_s = profile.latency_s(tp, block_length, StepKind.CACHE) if caching else recompute_s
    return float((blocks * (recompute_s + (block_steps - 1) * cache_s)).mean())
