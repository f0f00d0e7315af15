"""Random small planning problems, and their answers by enumeration."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np
from scipy.optimize import linprog

from services.reconfigurator.planning.plan import Placement
from services.reconfigurator.planning.plan_input import PlanInput, Workload, WorkloadClass
from services.reconfigurator.planning.stage1_capacity import TIE
from shared.arrays import Float64
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile

OPTIMAL, INFEASIBLE = 0, 2  # status of linprog

Unknown = tuple[StepKind, int, str, int]  # kind of step, class, "c" or "d", threshold or TP degree


def small_input(seed: int, *, cached: bool) -> PlanInput:
    """A cluster of up to three nodes of up to four GPUs, and a workload that it may or may not sustain."""
    r = random.Random(seed)
    degrees = r.choice([[1], [1, 2], [1, 2], [2, 3], [1, 3], [1, 4]])
    batches = r.choice([[128, 512], [256, 2048], [64]])
    block = r.choice([16, 32])
    nodes = [r.randint(1, 4) for _ in range(r.randint(1, 3))]
    thresholds = r.sample([0.5, 0.7, 0.9], r.randint(2, 3))
    profile = LatencyProfile.from_rows(
        (d, b, kind, r.uniform(0.5, 1.5) * (0.02 + b / 20_000) / d**0.7)
        for d, b, kind in product(degrees, batches, StepKind)
    )
    workload = Workload(
        slo_s=r.uniform(0.3, 6),
        thresholds=thresholds,
        tp_degrees=degrees,
        batch_sizes=batches,
        tokens_per_step={c: r.uniform(1.2, 2) + 6 * (1 - c) for c in thresholds},
        block_length=block,
        nodes=[max(degrees[0], nodes[0]), *nodes[1:]],
        classes=[
            WorkloadClass(
                name=f"class {k}",
                prompt_tokens=r.randint(0, 400),
                output_tokens=block * r.randint(1, 8),
                rps=r.uniform(0.05, 1.5),
                slo_s=r.choice([None, r.uniform(0.3, 10)]),
            )
            for k in range(r.randint(1, 2))
        ],
    )
    return PlanInput(workload, profile, cached=cached)


def enumerate_stage1(p: PlanInput) -> tuple[float, float] | None:
    """The best mean threshold and, among its ties, the most slack; None if no configuration is feasible.

    Every choice of batch sizes and of instances is tried; each leaves a linear program, in the paper's own form.
    """
    programs = [
        _Program(p, dict(zip(product(p.J, p.D), picks, strict=True)), counts)
        for counts in _largest(_placeable(p.nodes, p.degrees))
        for picks in product(p.B, repeat=len(p.J) * len(p.D))
    ]
    found = [(quality, program) for program in programs if (quality := program.best_quality()) is not None]
    if not found:
        return None
    best = max(quality for quality, _ in found)
    return best, max(program.most_slack(best) for quality, program in found if quality > best * (1 - TIE))


class _Program:
    """Stage 1 with z and x given: a linear program in s_{k,c} and s_{k,d}, of each kind of step."""

    def __init__(self, p: PlanInput, picks: Mapping[tuple[StepKind, int], int], counts: Sequence[int]) -> None:
        by_threshold = [(j, k, "c", c) for j in p.J for k in p.K for c in p.C]
        by_degree = [(j, k, "d", d) for j in p.J for k in p.K for d in p.D]
        self._column = {unknown: i for i, unknown in enumerate(by_threshold + by_degree)}
        L = {key: p.steps[key[0]].L[key[1], b] for key, b in picks.items()}  # noqa: N806  (the paper's letter)
        batch = {key: p.batches[b] for key, b in picks.items()}
        self.equal = [self._row({u: p.T[u[3]] for u in by_threshold if u[1] == k}, p.O[k]) for k in p.K]
        for k in p.K:
            for j in p.J:
                ones = {u: 1.0 if u[2] == "c" else -1.0 for u in self._column if u[:2] == (j, k)}
                self.equal.append(self._row(ones, 0.0))
            if p.cached:
                blocks = {u: 1.0 for u in by_threshold if u[:2] == (StepKind.RECOMPUTE, k)}
                self.equal.append(self._row(blocks, p.recomputes[k]))
        self.below = [self._row({u: L[u[0], u[3]] for u in by_degree if u[1] == k}, p.SLO[k]) for k in p.K]
        for d in p.D:
            self.below.append(self._row(*_stability(p, d, counts[d], by_degree, L, batch)))
        shares = {u: p.RPS[u[1]] * p.thresholds[u[3]] * p.T[u[3]] / p.O[u[1]] for u in by_threshold}
        self.quality = self._row(shares, 0.0)[0] / p.RPS.sum()
        self.latency = self._row({u: p.RPS[u[1]] * L[u[0], u[3]] for u in by_degree}, 0.0)[0]
        self.most = float(p.RPS @ p.SLO)

    def best_quality(self) -> float | None:
        best = self._minimise(-self.quality, self.below)
        return None if best is None else -best

    def most_slack(self, quality: float) -> float:
        least = self._minimise(self.latency, [*self.below, (-self.quality, -quality * (1 - TIE))])
        assert least is not None
        return self.most - least

    def _row(self, factors: Mapping[Unknown, float], limit: float) -> tuple[Float64, float]:
        row = np.zeros(len(self._column))
        for unknown, factor in factors.items():
            row[self._column[unknown]] = factor
        return row, limit

    def _minimise(self, cost: Float64, below: Sequence[tuple[Float64, float]]) -> float | None:
        (above, limits), (equal, totals) = zip(*below, strict=True), zip(*self.equal, strict=True)
        found = linprog(cost, np.array(above), np.array(limits), np.array(equal), np.array(totals))
        assert found.status in (OPTIMAL, INFEASIBLE), found.message
        return float(found.fun) if found.status == OPTIMAL else None


def _stability(
    p: PlanInput,
    d: int,
    count: int,
    by_degree: Sequence[Unknown],
    latency_s: Mapping[tuple[StepKind, int], float],
    batch: Mapping[tuple[StepKind, int], float],
) -> tuple[dict[Unknown, float], float]:
    """The row of one TP degree and its limit: without a cache in tokens per second, with one in instances."""
    factors = {u: p.RPS[u[1]] * p.steps[u[0]].tokens[u[1]] for u in by_degree if u[3] == d}
    if not p.cached:
        key = (StepKind.RECOMPUTE, d)
        return factors, batch[key] * count / latency_s[key]
    return {u: factor * latency_s[u[0], d] / batch[u[0], d] for u, factor in factors.items()}, count


def enumerate_stage2(current: Sequence[Placement], required: Mapping[int, int], nodes: Sequence[int]) -> int | None:
    """The most instances that can be preserved; None if those required do not fit at all. Every set is tried."""
    for size in range(len(current), -1, -1):
        for kept in combinations(current, size):
            degrees = Counter(required)
            degrees.subtract(c.tp for c in kept)
            free = Counter(dict(enumerate(nodes)))
            free.subtract(Counter(c.node for c in kept for _ in c.gpus))
            if min(degrees.values(), default=0) >= 0 and _fits(sorted(degrees.elements()), [*free.values()]):
                return size
    return None


def small_transition(seed: int) -> tuple[list[Placement], dict[int, int], list[int]]:
    """Instances on up to three nodes of up to four GPUs, some GPUs idle, and instances required that may not fit."""
    r = random.Random(seed)
    degrees = r.choice([[1, 2], [1, 2, 4], [1, 2, 3], [2, 3]])
    nodes = [r.randint(1, 4) for _ in range(r.randint(1, 3))]
    current = []
    for node, count in enumerate(nodes):
        gpus = r.sample(range(count), count)
        while fitting := [d for d in degrees if d <= len(gpus)]:
            d = r.choice(fitting)
            if r.random() < 0.8:
                current.append(Placement(node=node, gpus=gpus[:d], tp=d))
            gpus = gpus[d:]
    required: Counter[int] = Counter()
    share = r.uniform(0.3, 1.0)
    while sum(required.elements()) < share * sum(nodes):
        required[r.choice(degrees)] += 1
    return current, dict(required), nodes


def _placeable(nodes: Sequence[int], degrees: Sequence[int]) -> set[tuple[int, ...]]:
    """Counts by TP degree that stand on the nodes together."""
    sums = {(0,) * len(degrees)}
    for gpus in nodes:
        ranges = product(*(range(gpus // d + 1) for d in degrees))
        ways = [way for way in ranges if sum(n * d for n, d in zip(way, degrees, strict=True)) <= gpus]
        sums = {tuple(a + b for a, b in zip(done, way, strict=True)) for done in sums for way in ways}
    return sums


def _largest(counts: set[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Those that no other one exceeds everywhere: more instances never serve less."""
    for one in counts:
        if not any(other != one and all(a >= b for a, b in zip(other, one, strict=True)) for other in counts):
            yield one


def _fits(degrees: Sequence[int], free: Sequence[int]) -> bool:
    """Whether instances of these degrees, ascending, fit into the `free` GPUs of each node."""
    if not degrees:
        return True
    *others, largest = degrees
    return any(
        _fits(others, [*free[:n], gpus - largest, *free[n + 1 :]]) for n, gpus in enumerate(free) if gpus >= largest
    )
