"""Whether a request can meet its SLO, by the work that the scheduler last published and that was admitted since."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from services.gateway.admission.forecast import Backlog, InstanceModel, RequestWork, instance_models
from shared.arrays import unpack_int32
from shared.messages.requests import Request
from shared.messages.stats import SchedulerStats
from shared.pinned import count_pinned
from shared.text import round_up_to_blocks

MAX_RETRY_S = 3600  # also for a request that does not fit an idle cluster: instances may be added


class SloAdmission:
    """Follows the cluster's backlog. Pure: statistics and times are arguments."""

    def __init__(self, default_slo_s: float) -> None:
        self.default_slo_s = default_slo_s  # of requests without an SLO
        self._stats: SchedulerStats | None = None
        self._backlog = Backlog.of([], 0.0)
        self._at_s = 0.0  # time of `_backlog`

    def admit(self, request: Request, stats: SchedulerStats | None, received_s: float, now_s: float) -> float:
        """`stats` are the latest, received at `received_s`.

        Returns: 0.0 if the request is admitted, else the whole seconds after which it would be if nothing else arrived.
        """
        if stats is None or stats.work is None or not stats.tokens_per_step:
            return 0.0
        work = stats.work
        if stats is not self._stats:
            self._stats, self._at_s, self._backlog = stats, received_s, Backlog.of(work.groups, received_s)
        models = instance_models(work, float(self._backlog.requests.sum()), caching=stats.caching)
        backlog_after = _progress(self._backlog, models)
        elapsed_s = max(now_s - self._at_s, 0.0)
        easy, mean = (_work_of(request, stats, share) for share in (work.least_steps_share, work.mean_steps_share))
        slo_s = request.slo_s or self.default_slo_s

        def is_admitted_after(wait_s: float) -> bool:
            ahead = backlog_after(elapsed_s + wait_s).ahead_of(request.priority)
            if work.by_deadline:
                ahead = ahead.due_within(self._at_s, self._at_s + wait_s + slo_s)
            return any(model.earliest_end_s(easy, mean, ahead) <= slo_s for model in models)

        self._backlog, self._at_s = backlog_after(elapsed_s), self._at_s + elapsed_s
        if not is_admitted_after(0.0):
            return 1.0 + bisect_left(range(1, MAX_RETRY_S), True, key=is_admitted_after)
        self._backlog = self._backlog.with_request(mean, now_s + slo_s, request.priority)
        return 0.0


def _progress(backlog: Backlog, models: Sequence[InstanceModel]) -> Callable[[float], Backlog]:
    """Returns: a function of seconds, the backlog after that time without arrivals, at the fastest."""
    curves = [model.progress(backlog) for model in models]

    def after(seconds: float) -> Backlog:
        return backlog.advanced(max(float(np.interp(seconds, *curve)) for curve in curves))

    return after


def _work_of(request: Request, stats: SchedulerStats, steps_share: float) -> RequestWork:
    """A whole request at the lowest threshold that the policy and its quality floor allow; `steps_share`: of the steps
    at the mean rate."""
    lowest = stats.work.lowest_threshold if stats.work else 0.0
    rate = float(np.interp(max(lowest, request.min_threshold), stats.thresholds, stats.tokens_per_step))
    prompt_tokens = len(unpack_int32(request.prompt_ids or b""))
    output_tokens = round_up_to_blocks(request.output_tokens, request.block_length)
    free_tokens = output_tokens - count_pinned(request)
    steps = max(steps_share * free_tokens / rate, 1.0)
    if request.choices:  # one step per block
        steps, steps_share = output_tokens / request.block_length, 1.0
    blocks = 1.0 if stats.exact_cache else max(min(steps_share, 1.0) * free_tokens / request.block_length, 1.0)
    tokens = prompt_tokens + output_tokens
    if stats.exact_cache:  # its first step feeds the prompt, unless a prefix cache has it, and one block
        tokens = request.block_length + (0 if stats.prefix_cache else prompt_tokens)
    return RequestWork(
        steps=steps,
        recompute_steps=min(blocks, steps) if stats.caching else steps,
        tokens=tokens,
        block_length=request.block_length,
    )
