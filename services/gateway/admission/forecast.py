"""The earliest end of a new request: the seconds of its own iterations, which it shares with the requests ahead of it.

A round is one step of every request. All requests with room run a step in one iteration; without room for all, a round
takes several iterations. The model is optimistic: each instance is always busy with full batches, recompute steps cost
what they add to large batches, and the request joins the instance that has the least to do.

Arrays hold g groups of equal requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from shared.arrays import Bool, Float64
from shared.messages.stats import CURVE_TOKENS, ClusterWork, InstanceClass, WorkGroup

TOKENS = np.array(CURVE_TOKENS, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class RequestWork:
    """The steps of one request, and its lengths in tokens."""

    steps: float
    recompute_steps: float
    tokens: float
    block_length: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """The requests that are ahead of others. Shapes: [g] each."""

    requests: Float64
    steps: Float64  # left of each request
    recompute_share: Float64  # of the steps
    tokens: Float64
    block_length: Float64
    due_s: Float64  # deadlines
    priority: Float64

    @classmethod
    def of(cls, groups: Sequence[WorkGroup], at_s: float) -> Self:
        """`at_s`: the time of the message."""
        rows = [
            (g.requests, g.steps, g.recompute_steps / max(g.steps, 1e-9), g.tokens, g.block_length, at_s + g.due_in_s,
             g.priority)
            for g in groups
        ]  # fmt: skip
        return cls(*np.array(rows, dtype=np.float64).reshape(-1, 7).T)

    def with_request(self, work: RequestWork, due_s: float, priority: int) -> Self:
        row = (1, work.steps, work.recompute_steps / work.steps, work.tokens, work.block_length, due_s, priority)
        return type(self)(*(np.append(column, value) for column, value in zip(self._columns(), row, strict=True)))

    def emptied(self) -> Self:
        """Without requests."""
        return self._only(np.zeros(len(self.steps), dtype=np.bool_))

    def ahead_of(self, priority: int) -> Self:
        """The requests of this priority and above."""
        return self._only(self.priority >= priority)

    def due_within(self, first_s: float, last_s: float) -> Self:
        return self._only((self.due_s >= first_s) & (self.due_s <= last_s))

    def advanced(self, rounds: float) -> Self:
        """After this number of steps of each request."""
        return replace(self, steps=self.steps - rounds)._only(self.steps > rounds)

    def _only(self, which: Bool) -> Self:
        return type(self)(*(column[which] for column in self._columns()))

    def _columns(self) -> tuple[Float64, ...]:
        return (
            self.requests, self.steps, self.recompute_share, self.tokens, self.block_length, self.due_s, self.priority
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class InstanceModel:
    """The instance of a class that has the least to do."""

    costs: InstanceClass
    caching: bool
    share: float  # of the backlog
    computing_share: float  # of the time; in the rest the instance waits for messages

    def earliest_end_s(self, easy: RequestWork, mean: RequestWork, ahead: Backlog) -> float:
        """Seconds from now: those of the request alone, if it is an easy one, and the delay of a mean one by others."""
        alone = ahead.emptied()
        delay_s = self._latency_s(mean, ahead) - self._latency_s(mean, alone)
        return self._latency_s(easy, alone) + delay_s / self.computing_share

    def _latency_s(self, own: RequestWork, ahead: Backlog) -> float:
        """Computing seconds to the end of a request that starts now."""
        ends_s = self._ends_s(np.append(np.minimum(ahead.steps, own.steps), own.steps), ahead, own)
        if not self.caching:
            return float(ends_s[-1])
        recompute_s, cache_s = self.costs.recompute_s, self.costs.cache_s
        extra_s = _interpolated(recompute_s, own.tokens) - _interpolated(cache_s, own.block_length)
        return float(ends_s[-1] + own.recompute_steps * np.maximum(extra_s, 0.0))

    def rounds_within(self, seconds: float, ahead: Backlog) -> float:
        """The steps that each request ahead makes in this time; infinity if all end."""
        ends_s = self._ends_s(ahead.steps, ahead, None) / self.computing_share
        if seconds >= ends_s.max(initial=0.0):
            return math.inf
        order = ends_s.argsort(kind="stable")
        return float(np.interp(seconds, np.append(0.0, ends_s[order]), np.append(0.0, ahead.steps[order])))

    def _ends_s(self, rounds: Float64, ahead: Backlog, own: RequestWork | None) -> Float64:
        """The computing seconds after which each group has left, if it takes part in this number of rounds.

        Shapes: [n] -> [n]; the last is `own`.
        """
        order = rounds.argsort(kind="stable")
        length = np.diff(rounds[order], prepend=0.0)
        amounts = self._amounts(ahead, own)[:, order]
        left = amounts[:, ::-1].cumsum(axis=1)[:, ::-1]  # of all groups that have not left
        ends_s = np.empty(len(rounds))
        ends_s[order] = (length * self._round_s(*left)).cumsum()
        return ends_s

    def _amounts(self, ahead: Backlog, own: RequestWork | None) -> Float64:
        """In a round, of each group and of `own`: requests, their tokens, and the tokens fed by cache steps and by
        recompute steps. With a cache the recompute steps of `own` count as cache steps here. Shapes: [4, n]."""
        cached = 1.0 - ahead.recompute_share if self.caching else np.zeros(len(ahead.steps))
        amounts = np.stack(
            [np.ones(len(cached)), ahead.tokens, cached * ahead.block_length, (1.0 - cached) * ahead.tokens]
        )
        amounts *= self.share * ahead.requests
        if own is None:
            return amounts
        fed = (own.block_length, 0.0) if self.caching else (0.0, own.tokens)
        return np.column_stack([amounts, (1.0, own.tokens, *fed)])

    def _round_s(self, requests: Float64, tokens: Float64, cache_tokens: Float64, recompute_tokens: Float64) -> Float64:
        """Computing seconds of a round with these amounts. Shapes: [n] -> [n]."""
        costs = self.costs
        fullness = np.maximum(requests / max(costs.max_requests, 1), tokens / max(costs.max_tokens, 1))
        iterations = np.maximum(np.minimum(fullness, requests), 1.0)
        if not self.caching:
            return iterations * _interpolated(costs.recompute_s, recompute_tokens / iterations)
        token_s = float((np.array(costs.recompute_s) / TOKENS).min())  # of a recompute step in the cheapest batch
        return iterations * _interpolated(costs.cache_s, cache_tokens / iterations) + token_s * recompute_tokens


def instance_models(work: ClusterWork, requests: float, *, caching: bool) -> list[InstanceModel]:
    """The least loaded instance of each class. `requests` are all that the cluster has; those that the instances do not
    hold yet are shared equally."""
    instances = sum(of_class.instances for of_class in work.classes)
    placed = sum(of_class.requests for of_class in work.classes)
    mean, waiting = requests / instances, max(requests - placed, 0.0) / instances
    return [
        InstanceModel(
            of_class, caching, min(of_class.fewest_requests + waiting, mean) / max(requests, 1.0), work.computing_share
        )
        for of_class in work.classes
    ]


def _interpolated(curve_s: Sequence[float], tokens: Float64 | float) -> Float64:
    """Seconds of an iteration, proportional to the tokens above the last point. Shapes: any -> the same."""
    latency_s: Float64 = np.interp(tokens, TOKENS, curve_s) * np.maximum(np.asarray(tokens) / TOKENS[-1], 1.0)
    return latency_s
