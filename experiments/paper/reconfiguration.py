"""The cluster configurations planned over the real-world day at several peak rates, without serving."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from experiments.paper.files import PROFILE, STEPS
from experiments.paper.plots import Panels
from experiments.paper.study import Comparison, Study, main
from experiments.paper.tables import Row, number, pick
from services.reconfigurator.planning.plan import Placement, PlannedInstance
from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.planner import make_plan
from services.reconfigurator.planning.workload_stats import PlanningSettings, RequestSample, class_loads, workload
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.messages.cell import DEFAULT_THRESHOLDS
from shared.profile import read_profile
from simulator.lengths import sharegpt_lengths
from simulator.steps_table import read_steps
from simulator.unloaded_latency import SLO_MULTIPLE, unloaded_latency_s
from simulator.workload import DAY, HOUR_S, ArrivalTrace, real_world_trace

PEAKS = (5, 10, 20)
WINDOWS = range(0, len(DAY), 2)  # every other one, because planning is slow
QUICK_WINDOWS = 1
NODES = (4, 4, 4, 4)
DEFAULTS = ReconfiguratorSettings()
PLANNING = PlanningSettings(DEFAULT_THRESHOLDS, DEFAULTS.tp_degrees, DEFAULTS.batch_sizes, DEFAULTS.rps_buffer)


def measure(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for peak in PEAKS:
        arriving = real_world_trace(sharegpt_lengths(), peak, np.random.default_rng(0))
        running: list[PlannedInstance] = []
        for window in WINDOWS[: QUICK_WINDOWS if quick else len(WINDOWS)]:
            running = _next(arriving, window, running)
            count = Counter(instance.tp for instance in running)
            label: Row = {"peak RPS": peak, "minute": (window + 1) * HOUR_S / 60}
            rows += [{**label, "TP degree": f"TP-{tp}", "instances": count[tp]} for tp in PLANNING.tp_degrees]
            print(*rows[-1].values(), dict(count), flush=True)
    return rows


def _next(arriving: ArrivalTrace, window: int, running: Sequence[Placement]) -> list[PlannedInstance]:
    """The instances after this window: its plan if that is accepted, else the running ones."""
    profile, steps = read_profile(PROFILE), read_steps(STEPS)
    slo_s = SLO_MULTIPLE * unloaded_latency_s(arriving, profile, steps, caching=True)
    indices = np.flatnonzero(arriving.arrival_s // HOUR_S == window)
    samples = [RequestSample(int(arriving.prompt_tokens[i]), int(arriving.output_tokens[i]), slo_s) for i in indices]
    tokens = {c: float(steps.tokens_at(np.array(c))) for c in PLANNING.thresholds}
    p = PlanInput(workload(class_loads(samples, HOUR_S), tokens, PLANNING, NODES), profile)
    plan = make_plan(p, running)
    stays = [PlannedInstance(node=place.node, gpus=place.gpus, tp=place.tp, preserved=True) for place in running]
    return plan.instances if plan.decision.take else stays


def table(rows: Sequence[Row]) -> list[Row]:
    """One row per minute, one column per peak rate."""
    return [
        {"minute": minute, **{f"peak {peak} RPS": _configuration(rows, peak, minute) for peak in PEAKS}}
        for minute in dict.fromkeys(number(row, "minute") for row in rows)
    ]


def _configuration(rows: Sequence[Row], peak: float, minute: float) -> str:
    selected = [row for row in pick(rows, minute=minute) if row["peak RPS"] == peak and number(row, "instances")]
    return ", ".join(f"{number(row, 'instances'):.0f} {row['TP degree']}" for row in selected)


def mean_instances(rows: Sequence[Row], peak: float) -> float:
    selected = [row for row in rows if row["peak RPS"] == peak]
    return sum(number(row, "instances") for row in selected) / len({row["minute"] for row in selected})


def compare(rows: Sequence[Row]) -> list[Comparison]:
    means = ", ".join(f"{mean_instances(rows, peak):.1f}" for peak in PEAKS)
    changes = [len({_configuration(rows, peak, number(row, "minute")) for row in rows}) for peak in PEAKS]
    return [
        (
            f"instances on 16 GPUs at peaks of {', '.join(map(str, PEAKS))} RPS, mean over the day",
            "from few of a high TP degree to many of a low one as the peak rises",
            means,
        ),
        ("number of configurations over the day", "changes with the rate at all peaks", ", ".join(map(str, changes))),
    ]


STUDY = Study(
    name="reconfiguration",
    title="Reconfiguration over peak rates",
    source='"Ablation Studies", the figure of the derived cluster configuration over time by peak RPS',
    measure=measure,
    panels=Panels(x="minute", y=("instances",), line="TP degree", facet="peak RPS", steps=True),
    compare=compare,
    verdict="reproduced: the paper plans without serving, too",
    remarks=(
        "As in the paper the trace is fed to the workload statistics, and nothing is served. Every 10 minutes a plan "
        "is made for the arrivals of the last 5 minutes (with a safety buffer of 10 %) and accepted if an objective "
        "improves by 10 %. The paper does not state its peaks or configurations; the solver is CBC, not Gurobi."
    ),
    table=table,
)

if __name__ == "__main__":
    main(STUDY)
