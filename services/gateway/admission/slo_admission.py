"""Whether a request can meet its SLO: its minimum latency under the load that the scheduler last published."""

import math

from shared.arrays import unpack_int32
from shared.messages.requests import Request
from shared.messages.stats import STATS_S, SchedulerStats
from shared.text import round_up_to_blocks

MAX_STATS_AGE_S = 3 * STATS_S
MAX_LATE_S = 3600.0


class SloAdmission:
    """Adds the work admitted since the scheduler published its load. Pure: load and time are arguments."""

    def __init__(self, default_slo_s: float) -> None:
        self._default_slo_s = default_slo_s
        self._stats: SchedulerStats | None = None
        self._admitted_tokens = 0.0  # tokens to compute for requests admitted since `_stats`

    def admit(self, request: Request, stats: SchedulerStats | None, now_s: float) -> float:
        """`stats` are the latest. Returns: 0.0 if the request is admitted, else its minimum lateness in seconds."""
        if stats is not self._stats:
            self._stats, self._admitted_tokens = stats, 0.0
        if stats is None or stats.load is None or not stats.tokens_per_step or stats.at_s < now_s - MAX_STATS_AGE_S:
            return 0.0
        request_tokens = min_tokens(request, stats)
        ahead_tokens = max(0.0, stats.load.least_tokens) + self._admitted_tokens
        throughput = stats.load.throughput_tokens_per_s
        latency_s = (ahead_tokens + request_tokens) / throughput if throughput > 0 else math.inf
        late_s = latency_s - (request.slo_s or self._default_slo_s)
        if late_s > 0:
            return min(late_s, MAX_LATE_S)
        self._admitted_tokens += request_tokens
        return 0.0


def min_tokens(request: Request, stats: SchedulerStats) -> float:
    """Tokens to compute for a whole request at the lowest threshold that its quality floor allows.

    Source: ReqLoad of Algorithms 2 and 4, as the scheduler's load control counts it.
    """
    output_tokens = round_up_to_blocks(request.output_tokens, request.block_length)
    tokens = len(unpack_int32(request.prompt_ids or b"")) + output_tokens
    allowed = [i for i, threshold in enumerate(stats.thresholds) if threshold >= request.min_threshold]
    lowest = allowed[0] if allowed else len(stats.thresholds) - 1
    blocks = output_tokens // request.block_length
    steps = max(output_tokens / max(stats.tokens_per_step[lowest], 1e-9), blocks)
    recompute_steps = blocks if stats.caching else steps
    return recompute_steps * tokens + (steps - recompute_steps) * request.block_length
