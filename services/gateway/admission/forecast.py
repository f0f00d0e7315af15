"""The earliest end of a new request: the seconds of its own iterations, which it shares with the requests ahead of it.

A round is one step of every request. All requests with room run a step in one iteration; without room for all, a round
takes several iterations. The model is optimistic: each instance is always busy with full batches, recompute steps cost
what they add to large batches, and the request joins the instance that has the least to do.

Arrays hold g groups of equal requests.
"""

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
        amounts = np.column_stack([self._amounts(ahead), self._amounts_alone(mean)])
        with_others_s = self._ends_s(np.append(np.minimum(ahead.steps, mean.steps), mean.steps), amounts)[-1]
        delay_s = with_others_s - mean.steps * self._round_s(self._amounts_alone(mean))
        return float(self._alone_s(easy) + delay_s / self.computing_share)

    def progress(self, ahead: Backlog) -> tuple[Float64, Float64]:
        """Times from now, ascending, and the steps that each request ahead has made by then, at most all of its own.

        Units: seconds, steps. Shapes: [g + 1] each.
        """
        ends_s = self._ends_s(ahead.steps, self._amounts(ahead)) / self.computing_share
        return np.append(0.0, ends_s), np.append(0.0, np.sort(ahead.steps))

    def _alone_s(self, own: RequestWork) -> Float64:
        """Computing seconds of a request that shares no iteration."""
        alone_s = own.steps * self._round_s(self._amounts_alone(own))
        if not self.caching:
            return alone_s
        recompute_s, cache_s = self.costs.recompute_s, self.costs.cache_s
        extra_s = _interpolated(recompute_s, own.tokens) - _interpolated(cache_s, own.block_length)
        return alone_s + own.recompute_steps * np.maximum(extra_s, 0.0)

    def _ends_s(self, rounds: Float64, amounts: Float64) -> Float64:
        """The computing seconds after which each group has left, if it takes part in this number of rounds; ascending.

        Shapes: [n], [4, n] -> [n].
        """
        order = rounds.argsort(kind="stable")
        ordered = rounds[order]
        length = ordered - np.append(0.0, ordered)[:-1]
        left = amounts[:, order[::-1]].cumsum(axis=1)[:, ::-1]  # of all groups that have not left
        ends_s: Float64 = (length * self._round_s(left)).cumsum()
        return ends_s

    def _amounts(self, ahead: Backlog) -> Float64:
        """In a round, of each group: requests, their tokens, and the tokens fed by cache steps and by recompute steps.
        Shapes: [4, g]."""
        cached = 1.0 - ahead.recompute_share if self.caching else np.zeros(len(ahead.steps))
        amounts = np.array(
            [np.ones(len(cached)), ahead.tokens, cached * ahead.block_length, (1.0 - cached) * ahead.tokens]
        )
        amounts *= self.share * ahead.requests
        return amounts

    def _amounts_alone(self, own: RequestWork) -> Float64:
        """As `_amounts` of one request; with a cache, its recompute steps count as cache steps. Shapes: [4]."""
        return np.array([1.0, own.tokens, *((own.block_length, 0.0) if self.caching else (0.0, own.tokens))])

    def _round_s(self, amounts: Float64) -> Float64:
        """Computing seconds of a round with these amounts. Shapes: [4, n] -> [n]."""
        requests, tokens, cache_tokens, recompute_tokens = amounts
        costs = self.costs
        fullness = np.maximum(requests / max(costs.max_requests, 1), tokens / max(costs.max_tokens, 1))
        iterations: Float64 = np.maximum(np.minimum(fullness, requests), 1.0)
        if not self.caching:
            return iterations * _interpolated(costs.recompute_s, recompute_tokens / iterations)
        token_s = float((np.array(costs.recompute_s) / TOKENS).min())  # of a recompute step in the cheapest batch
        recompute_s: Float64 = token_s * recompute_tokens
        return recompute_s + iterations * _interpolated(costs.cache_s, cache_tokens / iterations)


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
