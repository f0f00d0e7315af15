"""The work that the cluster has left and the costs of its iterations, from which the gateway forecasts latencies."""

from collections import defaultdict, deque

import numpy as np

from services.scheduler.algorithms.common_level import steps_at
from services.scheduler.core import CoreSettings, SchedulerCore
from services.scheduler.events import FinishRequest
from services.scheduler.policies import MigrationPolicy
from shared.arrays import Float64, Int64
from shared.messages.requests import ServingStats
from shared.messages.stats import CURVE_TOKENS, ClusterWork, InstanceClass, WorkGroup

MAX_ENDED = 256  # completed requests that the shares cover
MIN_ENDED = 20  # fewer do not count
EASY_QUANTILE = 0.05  # of completed requests: the share of steps that an easy request takes
PRIOR_SHARE = 0.5  # of an easy request, before MIN_ENDED have completed
QUICK_QUANTILE = 0.75  # of completed requests: the computing share of a request that others hardly hold up
MIN_COMPUTING_SHARE = 0.5
MIN_OBSERVED = 8  # measured iterations of an instance after which its corrected profile counts in full
UNCONFIRMED_SHARE = 0.25  # of it that counts before: a profile measured on a busy machine can be several times too slow
OCTAVES = 1 << 10  # more than the numbers of `_octaves`


class ServedShares:
    """How the latest completed requests compare with the mean rates and with pure computing time.

    The share of steps is relative to the one-shot estimate of the whole output at the thresholds used: it is low if the
    text is easy or ends early.
    """

    def __init__(self, settings: CoreSettings) -> None:
        self._rates = dict(zip(settings.thresholds, settings.tokens_per_step, strict=True))
        self._knows_rates = max(settings.tokens_per_step) > 1  # without a predictor's card, one token per step counts
        self._steps: deque[float] = deque(maxlen=MAX_ENDED)
        self._computing: deque[float] = deque(maxlen=MAX_ENDED)

    def record(self, finish: FinishRequest, stats: ServingStats) -> None:
        """Count a completed request."""
        expected = sum(use.tokens / self._rates[use.threshold] for use in stats.thresholds)
        if expected:
            steps = sum(use.steps for use in stats.thresholds)
            self._steps.append(steps / expected * stats.unmasked_tokens / finish.arrived.free_tokens)
        decisions = finish.decisions
        if decisions is not None and (first_sent_s := decisions.first_sent_s) is not None and stats.step_s:
            served_s = stats.latency_s - first_sent_s
            self._computing.append(stats.step_s / max(served_s, stats.step_s))

    @property
    def mean_steps(self) -> float:
        if len(self._steps) < MIN_ENDED:
            return 1.0 if self._knows_rates else 0.0
        return float(np.mean(self._steps))

    @property
    def least_steps(self) -> float:
        """The share of an easy request."""
        if len(self._steps) < MIN_ENDED:
            return PRIOR_SHARE if self._knows_rates else 0.0
        return float(np.quantile(self._steps, EASY_QUANTILE))

    @property
    def computing(self) -> float:
        """The share of the time since the first step in which iterations with the request run."""
        if len(self._computing) < MIN_ENDED:
            return 1.0
        return max(float(np.quantile(self._computing, QUICK_QUANTILE)), MIN_COMPUTING_SHARE)


def cluster_work(core: SchedulerCore, shares: ServedShares, now_s: float) -> ClusterWork | None:
    """The work of all active requests at their lowest thresholds. Returns: None if no instance is open."""
    classes = _classes(core)
    if not classes:
        return None
    return ClusterWork(
        classes=classes,
        groups=_groups(core, now_s),
        by_deadline=core.policy.moves is MigrationPolicy.FOR_ROOM,
        lowest_threshold=core.policy.lowest_threshold,
        mean_steps_share=shares.mean_steps,
        least_steps_share=shares.least_steps,
        computing_share=shares.computing,
    )


def _classes(core: SchedulerCore) -> list[InstanceClass]:
    fleet = core.fleet
    of_class: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for index in fleet.open.nonzero()[0].tolist():
        instance = fleet.instances[index]
        if instance is not None:
            of_class[instance.tp_degree, instance.profile].append(index)
    tokens = np.array(CURVE_TOKENS)
    classes = []
    for (_, profile), members in sorted(of_class.items()):
        corrections, known = fleet.correction[members], fleet.observed[members] >= MIN_OBSERVED
        correction = float(corrections[known].min() if known.any() else UNCONFIRMED_SHARE * corrections.min())
        if not profile:  # the costs are not known
            correction = 0.0
        if not fleet.requests[members].any():
            correction = min(correction, 1.0)  # a high one was learnt under load: if all are refused, none corrects it
        first = np.full(len(tokens), members[0])
        recompute_s = correction * fleet.recompute_latency_s(first, tokens)
        cache_s = correction * fleet.cache_latency_s(first, tokens)
        classes.append(
            InstanceClass(
                instances=len(members),
                requests=int(fleet.requests[members].sum()),
                fewest_requests=int(fleet.requests[members].min()),
                max_requests=int(fleet.max_requests[members].max()),
                max_tokens=int(fleet.max_tokens[members].max()),
                recompute_s=recompute_s.tolist(),
                cache_s=cache_s.tolist(),
            )
        )
    return classes


def _groups(core: SchedulerCore, now_s: float) -> list[WorkGroup]:
    table = core.table
    rows = table.ticket.nonzero()[0]
    if not len(rows):
        return []
    thresholds = np.maximum(table.min_threshold[rows], core.policy.lowest_threshold)
    candidates = np.array(core.settings.thresholds)
    steps, recompute_steps = (steps_at(left, candidates, thresholds) for left in core.estimates.remaining(rows))
    due_in_s = table.time_left_s(rows, now_s)
    keys = (table.priority[rows] * OCTAVES + _octaves(due_in_s)) * OCTAVES + _octaves(steps)
    _, of_row, requests = np.unique(keys, return_inverse=True, return_counts=True)
    latest_s = np.full(len(requests), -np.inf)
    np.maximum.at(latest_s, of_row, due_in_s)
    means = (
        np.bincount(of_row, values) / requests
        for values in (
            steps,
            recompute_steps,
            table.recompute_tokens(rows),
            table.block_length[rows],
            table.priority[rows],
        )
    )
    columns = zip(requests.tolist(), latest_s.tolist(), *(mean.tolist() for mean in means), strict=True)
    return [
        WorkGroup(
            requests=count,
            steps=mean_steps,
            recompute_steps=recomputes,
            tokens=tokens,
            block_length=block_length,
            due_in_s=latest,
            priority=round(priority),
        )
        for count, latest, mean_steps, recomputes, tokens, block_length, priority in columns
    ]


def _octaves(values: Float64) -> Int64:
    """Values within a factor of two have the same number, above 0; so have those below 1/16, and those below 0.
    Shapes: [n] -> [n]."""
    octaves: Int64 = np.floor(np.log2(np.maximum(values, 1 / 32))).astype(np.int64) + 6
    return np.where(values < 0, 0, octaves)
