"""How far any choice of thresholds can get: the highest accuracy at which all requests meet their SLO.

    python -m experiments.policies.bound [--points 'gsm8k*,step*'] [--seeds 10,11,12]

A linear program that knows all arrivals. Requests are a fluid: those that arrive in a slot of SLOT_S with the same SLO
are served at any mix of the candidate thresholds, in any slots until their deadline, in batches of one kind of step
that are as full as the room allows. EFFICIENCY is the share of such batches that requests that end their blocks at
different steps reach. So the bound leaves out the growth of latency with the batch, the difficulty of a request, and
the future that a scheduler does not know.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pyomo.environ as pyo
import typer

from experiments.policies.points import BASE, POINTS, POLICY, WHOLE_TRACE, Point
from experiments.policies.rows import SYSTEMS
from experiments.policies.runs import Run
from experiments.policies.store import RunStore
from experiments.policies.study import selected
from experiments.policies.tables import NAME
from experiments.report import RESULTS, Report
from services.reconfigurator.planning.solver import SolverStatus, solve
from shared.arrays import Float64, Int64
from shared.messages.steps import StepKind
from simulator.lengths import DATA
from simulator.workload import ArrivalTrace

BLOCK = 32
SLOT_S = 2.0
EFFICIENCY = 0.93
MAX_BATCH = 64
# Requests with ShareGPT's lengths miss their SLO in larger batches, as they have more steps
LONG_WORKLOADS, LONG_MAX_BATCH = ("trace", "step", "servegen", "mooncake"), 8
SOLVE_S = 600.0
BOUNDED = [*(point.name for point in BASE if point.target is not None), WHOLE_TRACE.name]
CANDIDATES = np.array(SYSTEMS[POLICY].scheduler().candidates)


@dataclass(frozen=True, slots=True)
class FluidLoad:
    """The load in groups that arrive in the same slot and are due in the same slot. Shapes: g groups, c candidates."""

    arrives: Int64  # [g], slot
    due: Int64  # [g], the last slot in which it may be served
    tokens: Float64  # [g], of output
    busy_s: Float64  # [g, c], seconds of one instance if all of the group is served at one candidate


def fluid_load(point: Point, workload: ArrivalTrace) -> FluidLoad:
    slo_s = np.where(np.isnan(workload.slo_s), point.slo_s(workload), workload.slo_s)
    arrives = (workload.arrival_s // SLOT_S).astype(np.int64)
    due = np.maximum(((workload.arrival_s + slo_s) // SLOT_S).astype(np.int64) - 1, arrives)
    keys, of_request = np.unique(np.stack([arrives, due]), axis=1, return_inverse=True)
    seconds = busy_seconds(point, workload)
    busy_s = np.stack([np.bincount(of_request, column) for column in seconds.T], axis=1).astype(np.float64)
    return FluidLoad(keys[0], keys[1], np.bincount(of_request, workload.output_tokens).astype(np.float64), busy_s)


def busy_seconds(point: Point, workload: ArrivalTrace) -> Float64:
    """The computing time of each request at each candidate, in full batches. Shapes: n requests -> [n, c]."""
    profile, steps = point.profile(), point.steps()
    lengths = workload.prompt_tokens + workload.output_tokens
    most = LONG_MAX_BATCH if point.workload in LONG_WORKLOADS else MAX_BATCH
    batch = float(np.clip(point.room_tokens / lengths.mean(), 1, most))
    blocks = np.ceil(workload.output_tokens / BLOCK)
    step_count = np.maximum(workload.output_tokens[:, None] / steps.tokens_at(CANDIDATES), blocks[:, None])
    cache_s = profile.latency_s(1, round(BLOCK * batch), StepKind.CACHE) / batch
    recompute_s = profile.latency_s(1, (batch * lengths).astype(np.int64), StepKind.RECOMPUTE) / batch
    seconds: Float64 = (step_count - blocks[:, None]) * cache_s + (blocks * recompute_s)[:, None]
    return seconds


def highest_accuracy(load: FluidLoad, accuracy: Float64, instances: int) -> float | None:
    """The mean accuracy over all tokens, if all groups are served in time; None if they cannot be.

    Shapes: accuracy [c].
    """
    groups, candidates = range(len(load.tokens)), range(len(accuracy))
    slots = [range(first, last + 1) for first, last in zip(load.arrives.tolist(), load.due.tolist(), strict=True)]
    of_slot: dict[int, list[int]] = {}
    for g in groups:
        for slot in slots[g]:
            of_slot.setdefault(slot, []).append(g)
    m = pyo.ConcreteModel("bound")
    m.share = pyo.Var(groups, candidates, domain=pyo.NonNegativeReals, doc="of the group, served at a candidate")
    m.served = pyo.Var(
        [(g, slot) for g in groups for slot in slots[g]],
        domain=pyo.NonNegativeReals,
        doc="busy-seconds of a group in a slot",
    )
    m.all_served = pyo.Constraint(groups, rule=lambda m, g: sum(m.share[g, c] for c in candidates) == 1)
    m.work = pyo.Constraint(
        groups,
        rule=lambda m, g: (
            sum(m.served[g, slot] for slot in slots[g])
            == sum(float(load.busy_s[g, c]) * m.share[g, c] for c in candidates)
        ),
    )
    room_s = EFFICIENCY * SLOT_S * instances
    m.room = pyo.Constraint(list(of_slot), rule=lambda m, slot: sum(m.served[g, slot] for g in of_slot[slot]) <= room_s)
    worth = load.tokens[:, None] * accuracy / load.tokens.sum()
    m.accuracy = pyo.Objective(
        expr=sum(float(worth[g, c]) * m.share[g, c] for g in groups for c in candidates), sense=pyo.maximize
    )
    result = solve(m, SOLVE_S)
    return float(pyo.value(m.accuracy)) if result.status is SolverStatus.OPTIMAL else None


def bound_of(point: Point, seed: int, data: Path) -> float | None:
    """Percent."""
    accuracy = point.steps().accuracy_at(CANDIDATES)
    assert accuracy is not None, "the published steps table has accuracies"
    return highest_accuracy(fluid_load(point, point.arrivals(seed, data)), accuracy, point.instances)


def report(names: Sequence[str], seeds: Sequence[int], store: RunStore, out: Path) -> None:
    text = Report(
        "The highest accuracy at 100 % attainment",
        "A linear program that knows all arrivals; see experiments/policies/bound.py for what it leaves out. The "
        "policy's figures are the stored ones of the same seeds.",
    )
    text.add_columns("point", "bound on the accuracy, %", "the policy's attainment, %", "its accuracy, %")
    for name in names:
        bounds = [bound_of(POINTS[name], seed, DATA) for seed in seeds]
        runs = [store.get(Run(POINTS[name], SYSTEMS[POLICY], seed)) for seed in seeds]
        found = [run for run in runs if run is not None]
        whole = len(found) == len(seeds)
        bound = "no bound" if None in bounds else f"{np.mean([b for b in bounds if b is not None]):.2f}"
        policy = [f"{np.mean([getattr(run, of) for run in found]):.2f}" for of in ("attainment", "accuracy") if whole]
        text.add_row(name, bound, *(policy or ["-", "-"]))
    text.write(out)


def main(
    *,
    points: Annotated[str, typer.Option(help="Load points, comma-separated; * matches any text.")] = ",".join(BOUNDED),
    seeds: Annotated[str, typer.Option(help="Seeds, comma-separated.")] = "10,11,12",
    out: Annotated[Path, typer.Option(help="File of the report.")] = RESULTS / "policy_bound.md",
) -> None:
    """Print the bound of each point beside the policy."""
    numbers = [int(seed) for seed in seeds.split(",")]
    report(selected(POINTS, points), numbers, RunStore(RESULTS / f"{NAME}.csv"), out)


if __name__ == "__main__":
    typer.run(main)
