"""How long planning takes, by the size of the cluster: both stages, both solvers, with and without a cache.

python -m experiments.planner_scale --gpus 4,16,64,256,1024
"""

import os
import platform
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Annotated, NamedTuple

import typer

from services.reconfigurator.planning.plan import Capacity, Placement, Solver
from services.reconfigurator.planning.plan_input import PlanInput, Workload, WorkloadClass, plan_input
from services.reconfigurator.planning.stage1 import find_capacity
from services.reconfigurator.planning.stage2 import plan_transition
from shared.profile import LatencyProfile, read_profile

DATA = Path(__file__).with_name("data")
RESULTS = Path(__file__).with_name("results")
DEGREES = [1, 2, 4]
BATCH_SIZES = [32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384]  # tokens
TOKENS_PER_STEP = {0.5: 7.01, 0.6: 6.17, 0.7: 5.12, 0.8: 4.24, 0.9: 3.25}
CLASSES = 24
RPS_PER_GPU = {True: 0.9, False: 0.35}  # by whether there is a cache: so much that thresholds are traded for load


def draw_workload(gpus: int, per_node: int, rps_per_gpu: float) -> Workload:
    """24 classes of random sizes and shares of the load; long outputs have longer SLOs."""
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
    """Nodes with a random mixture of instances, a tenth of them gone; required are TP-4 on half of the GPUs, TP-2 and
    TP-1 on a quarter each."""
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


class Row(NamedTuple):
    """One line of the table."""

    gpus: int
    nodes: str
    stage: str
    solver: str
    cpu_s: float
    elapsed_s: float
    result: str
    gap: str

    def text(self) -> str:
        seconds = (f"{self.cpu_s:.2f}", f"{self.elapsed_s:.2f}")
        cells = (self.gpus, self.nodes, self.stage, self.solver, *seconds, self.result, self.gap)
        return f"| {' | '.join(map(str, cells))} |"


NOTE = "CPU s is of the planner and its solver together; elapsed s also counts what other programs took of the core."
HEAD = (
    "| GPUs | nodes | stage | solver | CPU s | elapsed s | result | gap |\n"
    "| ---: | --- | --- | --- | ---: | ---: | --- | --- |"
)


def run_stage1(p: PlanInput, solver: Solver, time_limit_s: float) -> tuple[str, str]:
    """The result, and the gaps of the primary and the secondary objective."""
    found = find_capacity(p, solver=solver, time_limit_s=time_limit_s)
    if not isinstance(found, Capacity):
        return found.name.lower(), ""
    instances = " + ".join(f"{count} TP-{degree}" for degree, count in found.instances_per_tp.items())
    result = f"{found.status}: mean threshold {found.mean_threshold:.4f}, slack {found.slack_s:.1f}, {instances}"
    return result, f"{_gap(found.mean_threshold_gap)}, {_gap(found.slack_gap)}"


def run_stage2(gpus: int, per_node: int, solver: Solver, time_limit_s: float) -> tuple[str, str]:
    """The result and its gap."""
    current, required = draw_transition(gpus, per_node)
    nodes = [per_node] * (gpus // per_node)
    found = plan_transition(current, required, nodes, solver=solver, time_limit_s=time_limit_s)
    status = "optimal" if found.gap == 0 else "feasible"
    return f"{status}: {found.preserved} of {len(current)} preserved, {len(found.steps)} steps", _gap(found.gap)


def timed(run: Callable[[], tuple[str, str]]) -> tuple[float, float, str, str]:
    """CPU seconds of this process and of the solver's, elapsed seconds, and what the run gave."""
    before, start_s = os.times(), perf_counter()
    result, gap = run()
    after, elapsed_s = os.times(), perf_counter() - start_s
    return sum(after[:4]) - sum(before[:4]), elapsed_s, result, gap


def rows(gpus: int, per_node: int, profile: LatencyProfile, time_limit_s: float) -> Iterator[Row]:
    """Every stage with every solver, for one cluster."""
    nodes = f"{gpus // per_node} x {per_node}"
    for solver in Solver:
        for cached, stage in ((False, "1"), (True, "1, cache")):
            p = plan_input(draw_workload(gpus, per_node, RPS_PER_GPU[cached]), profile, cached=cached)
            yield Row(gpus, nodes, stage, solver, *timed(partial(run_stage1, p, solver, time_limit_s)))
        yield Row(gpus, nodes, "2", solver, *timed(partial(run_stage2, gpus, per_node, solver, time_limit_s)))


def main(
    *,
    gpus: Annotated[str, typer.Option(help="Sizes of the cluster, separated by commas.")] = "4,16,64,256,1024",
    gpus_per_node: Annotated[str, typer.Option(help="Kinds of node, separated by commas.")] = "4,8",
    time_limit: Annotated[float, typer.Option(help="Seconds for each stage.")] = 60.0,
    profile: Annotated[Path, typer.Option(help="PROFILE.csv.")] = DATA / "h100-llada8b.csv",
) -> None:
    """Print the table and write it to experiments/results/planner_scale.md."""
    command = f"python -m experiments.planner_scale {' '.join(sys.argv[1:])}".strip()
    latencies = read_profile(profile)
    print(f"{command}\n{machine()}\n\n{HEAD}", flush=True)
    table = []
    for size, per_node in product(map(int, gpus.split(",")), map(int, gpus_per_node.split(","))):
        for row in rows(size, per_node, latencies, time_limit) if per_node <= size else ():
            table.append(row.text())
            print(table[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    title = f"# Planning time by size of the cluster\n\n`{command}` on {machine()}\n\n{NOTE}\n"
    text = "\n".join([title, HEAD, *table, ""])
    (RESULTS / "planner_scale.md").write_text(text, encoding="utf-8")


def machine() -> str:
    """The processor; every solver runs on one core."""
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    model, count = Counter(names).most_common(1)[0] if names else (platform.processor() or platform.machine(), 1)
    return f"one core of {model} ({count} shared), Python {platform.python_version()}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _gap(gap: float | None) -> str:
    return "unknown" if gap is None else f"{gap:.2%}"


if __name__ == "__main__":
    typer.run(main)
