"""When to decide: every interval, at once if instances are lost, and early if the arrivals have outgrown the last plan.
Pure.

A window that ends in growth mostly holds older, lower load, and a transition takes minutes: started at the next regular
interval, it would take instances away from a cluster that is overloaded already. A plan for growth is also made for
room instead of speed, because how far the load will grow is unknown.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import sqrt

from shared.messages.launch import InstanceSpec

CHECKS_PER_WINDOW = 5  # checks for growth, each of the arrivals since the last
MIN_DEVIATIONS = 4.0  # standard deviations of the number of arrivals; chance alone hardly ever exceeds it


@dataclass(frozen=True, slots=True)
class PlanTrigger:
    """Why a decision is made now, and over which arrivals."""

    span_s: float  # length of the window of arrivals
    rise: float = 0.0  # growth of the rate since the last decision, relative to the rate now
    lost: tuple[str, ...] = ()  # names of the instances whose loss triggers the decision

    @property
    def growing(self) -> bool:
        """Whether growth triggers the decision early."""
        return self.rise > 0

    def buffer(self, rps_buffer: float) -> float:
        """Headroom over the observed rate, relative: the rise once more, and the safety buffer."""
        return (1 + self.rise) * (1 + rps_buffer) - 1

    def explain(self, reason: str) -> str:
        """The reason of a decision, with the reason for its time."""
        if self.lost:
            return f"at once, after the loss of {', '.join(self.lost)}: {reason}"
        if not self.growing:
            return reason
        return f"early, as the last {self.span_s:g} s outgrew the plan, and for {self.rise:.0%} more to come: {reason}"


class PlanSchedule:
    """Decides when the next decision is due. Units: seconds, of any one clock.

    An early decision uses only the latest arrivals and plans for as much growth again. The next regular decision then
    waits for a whole window, so that it uses no older arrivals.
    Source: "Practical Consideration" has the interval and the safety buffer; early decisions are this system's own.
    """

    def __init__(self, interval_s: float, window_s: float, rps_buffer: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._window_s = window_s
        self.recent_s = window_s / CHECKS_PER_WINDOW  # the span of arrivals that is checked for growth
        self._rps_buffer = rps_buffer
        self._start_s = now_s
        self._next_s = self._following_s = now_s + max(interval_s, window_s)
        self._observed_rps = 0.0
        self._planned_rps: float | None = None  # None before the first decision

    def next_check_in_s(self, now_s: float) -> float:
        """Time until a decision may be due."""
        return max(0.0, min(self.recent_s, self._next_s - now_s))

    def due(self, now_s: float, recent: int, lost: Sequence[str] = ()) -> PlanTrigger | None:
        """The trigger of a decision that is due, or None. `recent` requests arrived in the last `recent_s`; `lost`
        names the instances lost since the last decision.

        The decision stays due until `decided` is called.
        """
        if lost:
            self._following_s = now_s + self._interval_s
            return PlanTrigger(min(self._window_s, max(1.0, now_s - self._start_s)), lost=tuple(lost))
        if self._planned_rps is not None and outgrown(recent, self._planned_rps * self.recent_s):
            self._following_s = now_s + max(self._interval_s, self._window_s)
            return PlanTrigger(self.recent_s, rise=1 - self._observed_rps * self.recent_s / recent)
        if now_s < self._next_s:
            return None
        self._following_s = now_s + self._interval_s
        return PlanTrigger(self._window_s)

    def decided(self, trigger: PlanTrigger, rps: float) -> None:
        """Record the arrival rate of the decision that was due, whether or not the decision changes anything."""
        self._next_s = self._following_s
        self._observed_rps = rps
        self._planned_rps = rps * (1 + trigger.buffer(self._rps_buffer))


def outgrown(arrivals: int, expected: float) -> bool:
    """Whether clearly more arrived than `expected`: the root of a Poisson count has a standard deviation of 1/2."""
    return sqrt(arrivals) > sqrt(expected) + MIN_DEVIATIONS / 2


class LossWatch:
    """The instances that ended although no plan stopped them, as those of a lost node, and that no decision has
    considered. One that never served does not count: its plan reports it."""

    def __init__(self) -> None:
        self._served: frozenset[InstanceSpec] = frozenset()
        self.lost: frozenset[InstanceSpec] = frozenset()

    def update(
        self, running: Collection[InstanceSpec], serving: Collection[InstanceSpec], stopped: Collection[InstanceSpec]
    ) -> bool:
        """Compare the instances with those of the last call; plans stopped `stopped`. Returns: whether any is lost."""
        self.lost |= self._served.difference(running, stopped)
        self._served = self._served.union(serving).intersection(running)
        return bool(self.lost)

    def forget(self, lost: Collection[InstanceSpec]) -> None:
        """Forget the losses that a decision has considered."""
        self.lost = self.lost.difference(lost)
