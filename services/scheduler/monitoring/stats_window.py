"""The scheduler's statistics: totals, and rates over a sliding window. It reads no clock."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, asdict, dataclass, replace
from typing import Any

import numpy as np

from services.scheduler import events as ev
from services.scheduler.algorithms.common_level import steps_at
from services.scheduler.algorithms.work_estimates import booked_shares
from services.scheduler.core import SchedulerCore
from services.scheduler.policies.dilaserve import priced_at
from services.scheduler.state.request_table import NOWHERE
from services.scheduler.state.totals import Totals
from shared.arrays import Bool
from shared.messages.requests import OutcomeStatus
from shared.messages.stats import WINDOW_S, InstanceLoad, LastServed, SchedulerStats
from shared.messages.versions import VERSION

RATES = ("completed", "tokens", "steps", "cycles")  # totals that are also reported per second
LOAD_COLUMNS = ("open", "requests", "max_requests", "tokens", "max_tokens")  # of the fleet


@dataclass
class StatsWindow:
    """Computes the statistics of one core."""

    _core: SchedulerCore
    _policy: str
    now_s: InitVar[float]
    _num_waiting: Callable[[], int] = lambda: 0  # the requests that wait outside the core
    _oldest_late_s: Callable[[float], float] = lambda _: 0.0  # by the time, the age of the first of them if it is late

    def __post_init__(self, now_s: float) -> None:
        self._stepped = (0, now_s)  # total of steps, and the last time at which it grew or no step was due
        self._cycle_max_s: float | None = None
        self._last: LastServed | None = None
        self._latencies: deque[tuple[float, float]] = deque()  # of completed requests: Unix time of the end, seconds
        self._history: deque[tuple[float, Totals]] = deque([(now_s, Totals())])  # Unix time and totals, oldest first

    def record_cycle(self, commands: Sequence[ev.Command], now_s: float, cycle_s: float) -> None:
        """Count a cycle that took `cycle_s` seconds, and the requests that it finished."""
        totals = self._core.totals
        totals.cycles += 1
        totals.cycle_s += cycle_s
        self._cycle_max_s = max(cycle_s, self._cycle_max_s or 0.0)
        for command in commands:
            match command:
                case ev.FinishRequest(status=OutcomeStatus.COMPLETED, stats=stats) if stats is not None:
                    self._latencies.append((now_s, stats.latency_s))

    def stats(self, now_s: float) -> SchedulerStats:
        """The message; `cycle_max_s` covers the time since the last message."""
        self._slide(now_s)
        began_s, earlier = self._history[0]
        window_s = max(now_s - began_s, 1e-3)
        core, settings = self._core, self._core.settings
        totals, recent = asdict(core.totals), core.totals.since(earlier)
        ended = recent.completed + recent.failed
        deferred = (core.table.ticket != 0) & (core.table.instance == NOWHERE)
        latencies = [latency_s for _, latency_s in self._latencies]
        cycle_max_s, self._cycle_max_s = self._cycle_max_s, None
        served: dict[str, Any] = {
            "slo_attainment": recent.slo_met / ended if ended else None,
            "mean_threshold": recent.threshold_tokens / recent.tokens if recent.tokens else None,
            "latency_p50_s": float(np.percentile(latencies, 50)) if latencies else None,
            "latency_p99_s": float(np.percentile(latencies, 99)) if latencies else None,
        }
        if ended:
            self._last = LastServed(at_s=now_s, **served)
        waiting = self._num_waiting()
        return SchedulerStats(
            **{name: totals[name] for name in totals.keys() & set(SchedulerStats.__struct_fields__)},
            at_s=now_s,
            version=VERSION,
            epoch=settings.epoch,
            policy=self._policy,
            thresholds=list(settings.thresholds),
            shed=settings.shed,
            window_s=window_s,
            active=len(core.table),
            deferred=int(deferred.sum()),
            infeasible=int(np.count_nonzero(core.table.infeasible & (core.table.ticket != 0))),
            waiting=waiting,
            slack=cell_slack(core, waiting),
            steps_in_flight=len(core.table.pipeline.in_flight()),
            oldest_queued_s=max(self._oldest_deferred_s(deferred, now_s), self._oldest_late_s(now_s)),
            stalled_s=self._stalled_s(now_s),
            rps=recent.arrived / window_s,
            **{f"{name}_per_s": getattr(recent, name) / window_s for name in RATES},
            **served,
            last=self._last,
            cycle_mean_s=recent.cycle_s / recent.cycles if recent.cycles else None,
            cycle_max_s=cycle_max_s,
            load=core.load,
            instances=self._instances(),
        )

    def _slide(self, now_s: float) -> None:
        """Remove what is older than the window; record the present totals for later windows."""
        while len(self._history) > 1 and self._history[1][0] <= now_s - WINDOW_S:
            self._history.popleft()
        while self._latencies and self._latencies[0][0] < now_s - WINDOW_S:
            self._latencies.popleft()
        self._history.append((now_s, replace(self._core.totals)))

    def _oldest_deferred_s(self, deferred: Bool, now_s: float) -> float:
        """The age of the oldest deferred request whose SLO has passed; 0 if there is none."""
        age_s = now_s - self._core.table.arrival_s[deferred]
        return float(age_s.max(initial=0.0, where=age_s > self._core.table.slo_s[deferred]))

    def _stalled_s(self, now_s: float) -> float:
        """The time without a step while requests are active and an instance is present."""
        steps, since_s = self._stepped
        if self._core.totals.steps != steps or len(self._core.table) == 0 or not self._core.fleet.index_of:
            self._stepped = self._core.totals.steps, now_s
            return 0.0
        return max(0.0, now_s - since_s)

    def _instances(self) -> list[InstanceLoad]:
        fleet = self._core.fleet
        ids = sorted(fleet.index_of)
        indices = np.array([fleet.index_of[instance_id] for instance_id in ids], dtype=np.int64)
        step_latency_s = fleet.recompute_latency_s(indices, fleet.tokens[indices])
        columns = {name: getattr(fleet, name)[indices] for name in LOAD_COLUMNS} | {"step_latency_s": step_latency_s}
        rows = zip(ids, *(column.tolist() for column in columns.values()), strict=True)
        return [
            InstanceLoad(instance_id=instance_id, **dict(zip(columns, row, strict=True))) for instance_id, *row in rows
        ]


def cell_slack(core: SchedulerCore, waiting: int) -> float:
    """The slack of a cell, by which gateways choose among the cells of a model: the free share of the SLO window or of
    the places for requests, whichever is smaller. At 1 the cell is idle; at 0 and below it is full.

    `waiting`: the requests outside the core, whose work is unknown; they take places.
    """
    fleet = core.fleet
    places = int(fleet.max_requests[fleet.open].sum())
    if not places:
        return 0.0
    requests = len(core.table) + waiting
    return min(1.0 - _booked_share(core), 1.0 - requests / places)


def _booked_share(core: SchedulerCore) -> float:
    """The share of the SLO window that the active requests take, each at the same part of the range of thresholds.
    Returns: 0 if none is active."""
    table, candidates = core.table, np.array(core.settings.thresholds)
    rows = table.ticket.nonzero()[0]
    if not len(rows):
        return 0.0
    threshold = priced_at(candidates)
    steps, recompute_steps = (steps_at(left, candidates, threshold) for left in core.estimates.remaining(rows))
    return float(booked_shares(rows, steps - recompute_steps, recompute_steps, table, core.fleet).sum())
