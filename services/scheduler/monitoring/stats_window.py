"""What the scheduler says of itself: counts kept cycle by cycle, and their rates over a sliding window. No clock."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from services.scheduler import events as ev
from services.scheduler.core import SchedulerCore
from services.scheduler.state.request_table import NOWHERE
from services.scheduler.state.step_pipeline import SENT
from shared.messages.requests import OutcomeStatus
from shared.messages.stats import WINDOW_S, InstanceLoad, SchedulerStats


@dataclass(slots=True)
class Totals:
    """All that is counted, from the start."""

    arrived: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    slo_met: int = 0
    migrations: int = 0
    predictions: int = 0
    predictor_fallbacks: int = 0
    steps: int = 0
    tokens: int = 0
    threshold_tokens: float = 0.0
    cycles: int = 0
    cycle_s: float = 0.0

    def since(self, earlier: "Totals") -> "Totals":
        """What was added."""
        return Totals(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})


class StatsWindow:
    """Watches one core."""

    def __init__(self, core: SchedulerCore, policy: str, now_s: float) -> None:
        self._core = core
        self._policy = policy
        self._totals = Totals()
        self._cycle_max_s: float | None = None
        self._latencies: deque[tuple[float, float]] = deque()  # (when, seconds) of those completed in the window
        self._history: deque[tuple[float, Totals]] = deque([(now_s, Totals())])  # totals as they were, oldest first

    def note(self, events: Sequence[ev.Event], commands: Sequence[ev.Command], now_s: float, cycle_s: float) -> None:
        """One cycle: what it took in, what came of it, and how many seconds it took."""
        totals, core = self._totals, self._core
        totals.cycles += 1
        totals.cycle_s += cycle_s
        self._cycle_max_s = max(cycle_s, self._cycle_max_s or 0.0)
        totals.steps, totals.tokens = core.step_totals.steps, core.step_totals.tokens
        totals.threshold_tokens = core.step_totals.threshold_tokens
        totals.predictor_fallbacks = core.estimates.fallbacks
        totals.arrived = core.num_arrived
        for event in events:
            if isinstance(event, ev.EstimatesReceived):
                totals.predictions += len(event.tickets)
        for command in commands:
            if isinstance(command, ev.FinishRequest):
                self._finished(command, now_s)

    def _finished(self, finish: ev.FinishRequest, now_s: float) -> None:
        totals = self._totals
        match finish.status:
            case OutcomeStatus.COMPLETED:
                totals.completed += 1
            case OutcomeStatus.CANCELLED:
                totals.cancelled += 1
            case _:
                totals.failed += 1
        if finish.stats is None:
            return
        totals.migrations += finish.stats.migrations
        if finish.status is OutcomeStatus.COMPLETED:
            totals.slo_met += finish.stats.slo_met
            self._latencies.append((now_s, finish.stats.latency_s))

    def stats(self, now_s: float) -> SchedulerStats:
        """The message; it begins the time that `cycle_max_s` is taken over anew."""
        self._slide(now_s)
        began_s, earlier = self._history[0]
        window_s = max(now_s - began_s, 1e-3)
        totals, recent = self._totals, self._totals.since(earlier)
        ended = recent.completed + recent.failed
        table, settings = self._core.table, self._core.settings
        used = table.ticket != 0
        latencies = [latency_s for _, latency_s in self._latencies]
        cycle_max_s, self._cycle_max_s = self._cycle_max_s, None
        return SchedulerStats(
            at_s=now_s,
            epoch=settings.epoch,
            policy=self._policy,
            thresholds=list(settings.thresholds),
            tokens_per_step=list(settings.tokens_per_step),
            caching=settings.caching,
            window_s=window_s,
            active=len(table),
            deferred=int((used & (table.instance == NOWHERE)).sum()),
            steps_in_flight=int((used & (table.pipeline.state >= SENT)).sum()),
            arrived=totals.arrived,
            completed=totals.completed,
            failed=totals.failed,
            cancelled=totals.cancelled,
            slo_met=totals.slo_met,
            migrations=totals.migrations,
            steps=totals.steps,
            tokens=totals.tokens,
            predictions=totals.predictions,
            predictor_fallbacks=totals.predictor_fallbacks,
            rps=recent.arrived / window_s,
            completed_per_s=recent.completed / window_s,
            tokens_per_s=recent.tokens / window_s,
            steps_per_s=recent.steps / window_s,
            slo_attainment=recent.slo_met / ended if ended else None,
            mean_threshold=recent.threshold_tokens / recent.tokens if recent.tokens else None,
            latency_p50_s=float(np.percentile(latencies, 50)) if latencies else None,
            latency_p99_s=float(np.percentile(latencies, 99)) if latencies else None,
            cycles_per_s=recent.cycles / window_s,
            cycle_mean_s=recent.cycle_s / recent.cycles if recent.cycles else None,
            cycle_max_s=cycle_max_s,
            load=self._core.load,
            instances=self._instances(),
        )

    def _slide(self, now_s: float) -> None:
        """Drop what the window has left behind; the present is kept for later windows to begin at."""
        while len(self._history) > 1 and self._history[1][0] <= now_s - WINDOW_S:
            self._history.popleft()
        while self._latencies and self._latencies[0][0] < now_s - WINDOW_S:
            self._latencies.popleft()
        self._history.append((now_s, replace(self._totals)))

    def _instances(self) -> list[InstanceLoad]:
        fleet = self._core.fleet
        return [
            InstanceLoad(
                instance_id=instance_id,
                open=bool(fleet.open[index]),
                requests=int(fleet.requests[index]),
                max_requests=int(fleet.max_requests[index]),
                tokens=int(fleet.tokens[index]),
                max_tokens=int(fleet.max_tokens[index]),
                step_latency_s=float(fleet.recompute_latency_s(np.array([index]), fleet.tokens[[index]])[0]),
            )
            for instance_id, index in sorted(fleet.index_of.items())
        ]
