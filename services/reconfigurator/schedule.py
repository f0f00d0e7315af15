"""When to decide: every interval, and early when what arrives has outgrown what was last planned for. Pure.

A window that ends in growth is mostly made of what was before, and a transition takes minutes: whoever waited for the
next interval would begin it when the cluster is overloaded already, and in the middle of it be smaller still. For the
same reason a plan for growth is made for room rather than for speed: how far the load will grow is not known.
"""

from dataclasses import dataclass
from math import sqrt

LOOKS = 5  # in a window: so much of it is looked at for growth
DEVIATIONS = 4.0  # standard ones, of the number of arrivals: more than that is hardly ever chance


@dataclass(frozen=True, slots=True)
class PlanTrigger:
    """What a decision is made on."""

    span_s: float  # of the arrivals that count
    rise: float = 0.0  # of the rate since the decision before, relative to what it has reached

    @property
    def growing(self) -> bool:
        """Whether it came early."""
        return self.rise > 0

    def buffer(self, rps_buffer: float) -> float:
        """What is planned for on top of what arrived, relative to that: the rise once more, and the safety buffer."""
        return (1 + self.rise) * (1 + rps_buffer) - 1

    def explain(self, reason: str) -> str:
        """The reason for a decision, with what made it come early."""
        if not self.growing:
            return reason
        return f"early, as the last {self.span_s:g} s outgrew the plan, and for {self.rise:.0%} more to come: {reason}"


class PlanSchedule:
    """Tells when the next decision is due, and on what occasion. Units: seconds, of any one clock.

    An early decision sees only what arrived lately, and plans for as much growth again. The next in order then waits
    until a whole window has passed, so that it is not made from what was before.
    Source: "Practical Consideration" has the interval and the safety buffer; early decisions are this system's own.
    """

    def __init__(self, interval_s: float, window_s: float, rps_buffer: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._window_s = window_s
        self._rps_buffer = rps_buffer
        self._next_s = now_s + max(interval_s, window_s)
        self._seen_rps = 0.0
        self._planned_rps: float | None = None  # nothing has been planned for yet

    @property
    def recent_s(self) -> float:
        """What is looked at for growth."""
        return self._window_s / LOOKS

    def next_check_in_s(self, now_s: float) -> float:
        """How long until something may be due."""
        return max(0.0, min(self.recent_s, self._next_s - now_s))

    def due(self, now_s: float, recent: int) -> PlanTrigger | None:
        """The occasion to decide on now, after which the next is waited for. `recent` came in the last `recent_s`.

        Returns: None if nothing is due.
        """
        if self._planned_rps is not None and outgrown(recent, self._planned_rps * self.recent_s):
            self._next_s = now_s + max(self._interval_s, self._window_s)
            return PlanTrigger(self.recent_s, rise=1 - self._seen_rps * self.recent_s / recent)
        if now_s < self._next_s:
            return None
        self._next_s = now_s + self._interval_s
        return PlanTrigger(self._window_s)

    def decided(self, trigger: PlanTrigger, rps: float) -> None:
        """Note the rate that a decision was made for, whether or not it changed anything."""
        self._seen_rps = rps
        self._planned_rps = rps * (1 + trigger.buffer(self._rps_buffer))


def outgrown(arrivals: int, expected: float) -> bool:
    """Whether clearly more have arrived than were `expected`: the root of a Poisson count deviates by a half."""
    return sqrt(arrivals) > sqrt(expected) + DEVIATIONS / 2
