"""The error of predicted iteration times on the iterations of a live cluster.

python -m experiments.iteration_error

One instance with one thread, on a core of its own, serves held-out problems in closed loops and in bursts. It predicts
from the profile that it registered, so with nothing from the run but the times of earlier iterations, which correct it
as in the scheduler. Beside it: the profile without these corrections, the profile's two curves without the rows of
mixed iterations, and a constant, the mean of the first WARM_UP iterations.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer

from experiments.live_calibration import serve, serve_loop
from experiments.live_cluster import LiveCluster, one_instance, unlearnt_requests
from experiments.live_iterations import BLOCK, RecordedIteration, iterations, record
from experiments.report import RESULTS, Report, target_list
from experiments.validate_live import registered_instance
from services.scheduler.state.instance_costs import InstanceCosts
from shared.arrays import Float64
from shared.messages.instances import Instance
from shared.profile import MIXED, LatencyProfile

CONCURRENCY = (1, 2, 4, 8, 16)  # requests at a time
REQUESTS = 32  # at each concurrency
BURSTS = (16, 48)  # requests sent at once
SLO_S = 120.0
WARM_UP = 50  # iterations from which the constant and the first corrections are learnt; they are not counted
MAX_ERROR = 0.10


async def load(cluster: LiveCluster) -> list[RecordedIteration]:
    """Serve closed loops and bursts. Returns: their iterations in order."""
    rows = unlearnt_requests()
    await serve_loop(cluster.url, rows[:REQUESTS], max(CONCURRENCY), SLO_S)  # warm-up
    async with record(cluster.nats_url) as recording:
        for number, concurrency in enumerate(CONCURRENCY):
            await serve_loop(cluster.url, rows[number * REQUESTS :][:REQUESTS], concurrency, SLO_S)
        for count in BURSTS:
            await serve(cluster.url, rows[:count], [0.0] * count, SLO_S)
    return iterations(recording.jobs, recording.results)


def separate_cores() -> None:
    """Give the worker's process the last core, and all other programs of the cluster the others."""
    *others, last = sorted(os.sched_getaffinity(0))
    for process in psutil.Process().children(recursive=True):
        is_worker = "services.worker" in process.cmdline()
        process.cpu_affinity([last] if is_worker or not others else others)


def predictions(run: Sequence[RecordedIteration], instance: Instance) -> dict[str, Float64]:
    """Predicted seconds by the name of the prediction. Shapes: [n] each."""
    columns = [(BLOCK * one.cached, one.recomputed_tokens, one.computing_s) for one in run]
    cached, recomputed, observed_s = np.array(columns, dtype=np.float64).T
    amounts = {"cache_tokens": cached, "recompute_tokens": recomputed}
    profile = LatencyProfile.from_csv(instance.profile)
    curves = LatencyProfile.from_rows(row for row in profile.rows if row.kind != MIXED)
    alone_s = profile.cost(1).seconds(**amounts)
    return {
        "profile, corrected by the iterations before": corrected(alone_s, observed_s, instance),
        "profile alone": alone_s,
        "its two curves, no mixed rows": curves.cost(1).seconds(**amounts),
        "a constant": np.full(len(run), observed_s[:WARM_UP].mean()),
    }


def corrected(predicted_s: Float64, observed_s: Float64, instance: Instance) -> Float64:
    """Each prediction times the scheduler's correction before it. Shapes: [n] -> [n]."""
    costs, one = InstanceCosts(1), np.zeros(1, dtype=np.int64)
    costs.learn_costs(0, instance)
    corrections = []
    for predicted, observed in zip(predicted_s, observed_s, strict=True):
        corrections.append(float(costs.correction[0]))
        costs.observe(one, np.array([observed]), np.array([predicted]))
    corrected_s: Float64 = predicted_s * np.array(corrections)
    return corrected_s


def main(out: Annotated[Path, typer.Option(help="Directory of the report.")] = RESULTS) -> None:
    """Measure, and write the report."""
    with one_instance("--policy", "dilaserve", "--cache", "dual") as cluster:
        separate_cores()
        instance = asyncio.run(registered_instance(cluster))
        run = asyncio.run(load(cluster))
    mixed = sum(one.cached > 0 and one.recomputed > 0 for one in run[WARM_UP:])
    report = Report(
        "The error of predicted iteration times",
        f"Demo model, one thread, cache dual. {len(run) - WARM_UP} iterations, {mixed} of them of cache and recompute "
        f"steps: {REQUESTS} requests each at {', '.join(map(str, CONCURRENCY))} at a time, then bursts of "
        f"{' and '.join(map(str, BURSTS))}. Error: |predicted / measured - 1|.",
    )
    report.add_columns("prediction", "median error", "90th percentile", "sum, predicted / measured")
    observed_s = np.array([one.computing_s for one in run])[WARM_UP:]
    medians = {}
    for name, all_s in predictions(run, instance).items():
        predicted_s = all_s[WARM_UP:]
        error = np.abs(predicted_s / observed_s - 1)
        medians[name] = float(np.median(error))
        total = predicted_s.sum() / observed_s.sum()
        report.add_row(name, f"{medians[name]:.1%}", f"{np.quantile(error, 0.9):.1%}", f"{total:.2f}")
    name, median = next(iter(medians.items()))
    report.add(target_list({f"{name}: median error {median:.1%}, below {MAX_ERROR:.0%}": median < MAX_ERROR}))
    report.write(out / "iteration_error.md")


if __name__ == "__main__":
    typer.run(main)
