"""The cell's load over the last seconds, from how its requests ended. Pure."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from services.gateway.views import Load
from shared.messages.requests import Outcome, OutcomeStatus

WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that was served, or should have been. Units: `at_s` is Unix time in seconds."""

    at_s: float
    slo_met: bool
    latency_s: float | None = None  # None where it got no text
    mean_threshold: float = 0.0
    tokens: int = 0  # of its text


def ended(outcome: Outcome, at_s: float) -> Ended | None:
    """What counts of an outcome; None for a request that was wrong or that nobody waited for."""
    if outcome.status is OutcomeStatus.COMPLETED and outcome.stats is not None:
        stats = outcome.stats
        return Ended(at_s, stats.slo_met, stats.latency_s, stats.mean_threshold, outcome.completion_tokens)
    return Ended(at_s, slo_met=False) if outcome.status is OutcomeStatus.FAILED else None


class Traffic:
    """The requests that ended within the window."""

    def __init__(self) -> None:
        self._ended: deque[Ended] = deque()

    def add(self, request: Ended) -> None:
        """Requests come in the order in which they ended."""
        self._ended.append(request)

    def load(self, now_s: float) -> Load:
        """The load as of now, and forget what is older than the window."""
        while self._ended and self._ended[0].at_s <= now_s - WINDOW_S:
            self._ended.popleft()
        served = [request for request in self._ended if request.latency_s is not None]
        tokens = [request.tokens for request in served]
        latencies_s = [request.latency_s for request in served if request.latency_s is not None]
        p50_ms, p99_ms = (np.percentile(latencies_s, (50, 99)) * 1000).tolist() if served else (None, None)
        thresholds = [request.mean_threshold for request in served]
        return Load(
            t_s=now_s,
            rps=len(self._ended) / WINDOW_S,
            slo_attainment=float(np.mean([request.slo_met for request in self._ended])) if self._ended else None,
            mean_threshold=float(np.average(thresholds, weights=tokens)) if sum(tokens) else None,
            latency_p50_ms=p50_ms,
            latency_p99_ms=p99_ms,
            tokens_per_s=sum(tokens) / WINDOW_S,
        )


def replay(past: list[Ended], until_s: float, seconds: int) -> tuple[Traffic, list[Load]]:
    """The load at each of the last seconds, from requests in the order in which they ended."""
    traffic, loads, requests = Traffic(), [], deque(past)
    for second in range(seconds):
        now_s = until_s - seconds + 1 + second
        while requests and requests[0].at_s <= now_s:
            traffic.add(requests.popleft())
        loads.append(traffic.load(now_s))
    return traffic, loads
