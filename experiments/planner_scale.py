"""Planning time by the size of the cluster: both stages, with and without a cache.

python -m experiments.planner_scale --gpus 4,16,64,256,1024
"""

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from experiments.report import RESULTS, Report
from services.reconfigurator.planning.plan import Capacity, Placement
from services.reconfigurator.planning.plan_input import PlanInput, Workload, WorkloadClass, plan_input
from services.reconfigurator.planning.stage1_capacity import find_capacity
from services.reconfigurator.planning.stage2_assignment import plan_transition
from shared.profile import LatencyProfile, read_profile

DATA = Path(__file__).with_name("data")
DEGREES = [1, 2, 4]
BATCH_SIZES = [32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384]  # tokens
TOKENS_PER_STEP = {0.5: 7.01, 0.6: 6.17, 0.7: 5.12, 0.8: 4.24, 0.9: 3.25}
CLASSES = 24
RPS_PER_GPU = {True: 0.9, False: 0.35}  # with and without a cache: high enough that the planner lowers thresholds


def draw_workload(gpus: int, per_node: int, rps_per_gpu: float) -> Workload:
    """24 classes of random lengths and rates; long outputs have longer SLOs."""
    r = random.Random(gpus)
    per_class = rps_per_gpu * gpus / CLASSES
    classes = []
    for k in range(CLASSES):
        output = 32 * r.randint(2, 16)
        rps, prompt = per_class * r.uniform(0.2, 1.8), 32 * r.randint(2, 32)
        slo_s = 2 + output / 64
        classes.append(WorkloadClass(name=f"{k}", prompt_tokens=prompt, output_tokens=output, rps=rps, slo_s=slo_s))
    return Workload(
        slo_s=10.0,
        thresholds=list(TOKENS_PER_STEP),
        tp_degrees=DEGREES,
        batch_sizes=BATCH_SIZES,
        tokens_per_step=TOKENS_PER_STEP,
        block_length=32,
        nodes=[per_node] * (gpus // per_node),
        classes=classes,
    )


def draw_transition(gpus: int, per_node: int) -> tuple[list[Placement], dict[int, int]]:
    """The running instances, a random mix with a tenth removed, and the required ones by TP degree.

    TP-4 is required on half of the GPUs, TP-2 and TP-1 on a quarter each.
    """
    r = random.Random(gpus)
    current = []
    for node in range(gpus // per_node):
        gpu = 0
        while gpu < per_node:
            tp = r.choice([d for d in DEGREES if gpu % d == 0 and gpu + d <= per_node])
            if r.random() < 0.9:
                current.append(Placement(node=node, gpus=list(range(gpu, gpu + tp)), tp=tp))
            gpu += tp
    fours = twos = gpus // 8
    required = {4: fours, 2: twos, 1: gpus - 4 * fours - 2 * twos}
    return current, {tp: count for tp, count in required.items() if count}


NOTE = "CPU s: planner and solver together; elapsed s includes the time that other programs took of the core."
COLUMNS = "GPUs", "nodes", "stage", "CPU s", "elapsed s", "result", "gap"


def run_stage1(p: PlanInput, time_limit_s: float) -> tuple[str, str]:
    """The result, and the gaps of the primary and secondary objectives."""
    found = find_capacity(p, time_limit_s)
    if not isinstance(found, Capacity):
        return found.name.lower(), ""
    instances = " + ".join(f"{count} TP-{degree}" for degree, count in found.instances_per_tp.items())
    result = f"{found.status}: mean threshold {found.mean_threshold:.4f}, slack {found.slack_s:.1f}, {instances}"
    return result, f"{_gap(found.mean_threshold_gap)}, {_gap(found.slack_gap)}"


def run_stage2(gpus: int, per_node: int, time_limit_s: float) -> tuple[str, str]:
    """The result and its gap."""
    current, required = draw_transition(gpus, per_node)
    nodes = [per_node] * (gpus // per_node)
    found = plan_transition(current, required, nodes, time_limit_s)
    status = "optimal" if found.gap == 0 else "feasible"
    return f"{status}: {found.preserved} of {len(current)} preserved, {len(found.steps)} steps", _gap(found.gap)


def timed(run: Callable[[], tuple[str, str]]) -> tuple[str, str, str, str]:
    """CPU seconds of this process and the solver's, elapsed seconds, and what `run` returns."""
    before, start_s = os.times(), perf_counter()
    result, gap = run()
    after, elapsed_s = os.times(), perf_counter() - start_s
    return f"{sum(after[:4]) - sum(before[:4]):.2f}", f"{elapsed_s:.2f}", result, gap


def rows(gpus: int, per_node: int, profile: LatencyProfile, time_limit_s: float) -> Iterator[tuple[object, ...]]:
    """The rows of one cluster: every stage."""
    nodes = f"{gpus // per_node} x {per_node}"
    for cached, stage in ((False, "1"), (True, "1, cache")):
        p = plan_input(draw_workload(gpus, per_node, RPS_PER_GPU[cached]), profile, cached=cached)
        yield gpus, nodes, stage, *timed(partial(run_stage1, p, time_limit_s))
    yield gpus, nodes, "2", *timed(partial(run_stage2, gpus, per_node, time_limit_s))


def main(
    *,
    gpus: Annotated[str, typer.Option(help="Sizes of the cluster, separated by commas.")] = "4,16,64,256,1024",
    gpus_per_node: Annotated[str, typer.Option(help="GPUs of a node, separated by commas.")] = "4,8",
    time_limit: Annotated[float, typer.Option(help="Seconds for each stage.")] = 60.0,
    profile: Annotated[Path, typer.Option(help="PROFILE.csv.")] = DATA / "h100-llada8b.csv",
) -> None:
    """Print the table and write it to experiments/results/planner_scale.md."""
    latencies = read_profile(profile)
    report = Report("Planning time by size of the cluster", NOTE)
    report.add_columns(*COLUMNS)
    for size, per_node in product(map(int, gpus.split(",")), map(int, gpus_per_node.split(","))):
        for row in rows(size, per_node, latencies, time_limit) if per_node <= size else ():
            report.add_row(*row)
    report.write(RESULTS / "planner_scale.md")


def _gap(gap: float | None) -> str:
    return "unknown" if gap is None else f"{gap:.2%}"


if __name__ == "__main__":
    typer.run(main)
