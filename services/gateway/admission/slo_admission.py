"""Whether a request can still meet its SLO: the least time it can take, by what the scheduler last said of its load."""

import math

from nats.aio.msg import Msg

from shared.arrays import unpack_int32
from shared.bus.client import Bus, try_decode
from shared.messages.requests import Request
from shared.messages.stats import STATS_S, SchedulerStats
from shared.text import round_up_to_blocks

STALE_S = 3 * STATS_S  # the scheduler's word counts no longer


class SloAdmission:
    """Hears the scheduler, and counts what has been let in since it spoke."""

    def __init__(self, default_slo_s: float) -> None:
        self._default_slo_s = default_slo_s
        self._stats: SchedulerStats | None = None
        self._admitted_tokens = 0.0  # still to be computed, of requests let in since then

    async def listen(self, bus: Bus) -> None:
        await bus.nc.subscribe(bus.subjects.stats("scheduler"), cb=self._hear)

    def take(self, stats: SchedulerStats) -> None:
        self._stats, self._admitted_tokens = stats, 0.0

    def admit(self, request: Request, now_s: float) -> float:
        """Let a request in, unless it would be late. Returns: by how many seconds at least; 0.0 if it is let in."""
        stats = self._stats
        if stats is None or stats.load is None or not stats.tokens_per_step or stats.at_s < now_s - STALE_S:
            return 0.0
        own_tokens = least_tokens(request, stats)
        ahead_tokens = max(0.0, stats.load.least_tokens) + self._admitted_tokens
        throughput = stats.load.throughput_tokens_per_s
        least_s = (ahead_tokens + own_tokens) / throughput if throughput > 0 else math.inf
        late_s = least_s - (request.slo_s or self._default_slo_s)
        if late_s > 0:
            return min(late_s, 3600.0)
        self._admitted_tokens += own_tokens
        return 0.0

    async def _hear(self, msg: Msg) -> None:
        stats = try_decode(msg, SchedulerStats)
        if stats is not None:
            self.take(stats)


def least_tokens(request: Request, stats: SchedulerStats) -> float:
    """Tokens to be computed for a whole request at the lowest threshold it may use.

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
