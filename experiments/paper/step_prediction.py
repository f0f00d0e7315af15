"""Serving by the paper's policy with different estimates of the steps left: one-shot, predictor, oracle.

The points are those of the study over rates, GSM8K with a tight SLO, and the real-world trace at a peak of 5 RPS on 4
instances.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean

from experiments.paper.benchmark_rates import RATES
from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun
from experiments.paper.study import Case, Comparison, Study, main
from experiments.paper.tables import Row, gains, pick, widest_gain
from simulator.scenario import PredictorName

PREDICTORS: Mapping[str, PredictorName] = {"one-shot": "one-shot", "step predictor": "trained", "oracle": "oracle"}
TIGHT_MULTIPLE = 3
TIGHT = f"gsm8k, SLO {TIGHT_MULTIPLE}x"


def cases() -> list[Case]:
    return [
        ({"workload": name, "system": f"DiLaServe, {estimates}", "RPS": point.rps}, replace(point, predictor=predictor))
        for estimates, predictor in PREDICTORS.items()
        for name, point in points()
    ]


def points() -> list[tuple[str, SimulationRun]]:
    """The load points, with the names of their workloads."""
    found = [(name, SimulationRun(benchmark=name, rps=rps)) for name, rates in RATES.items() for rps in rates]
    found += [(TIGHT, SimulationRun(rps=rps, slo_multiple=TIGHT_MULTIPLE)) for rps in RATES["gsm8k"]]
    return [*found, ("trace", SimulationRun(benchmark="trace", rps=5, cluster="4x1", requests=None))]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    one_shot, predictor, oracle = (f"DiLaServe, {estimates}" for estimates in PREDICTORS)
    found = []
    for workload in ("gsm8k", TIGHT):
        of_workload = pick(rows, workload=workload)
        found += [
            (
                f"{workload}, oracle over one-shot, widest gain",
                "+15 points",
                widest_gain(of_workload, one_shot, oracle),
            ),
            (
                f"{workload}, predictor over one-shot, widest gain",
                "+11 points, accuracy up to +1.1 %",
                widest_gain(of_workload, one_shot, predictor),
            ),
        ]
    for name, better in (("predictor", predictor), ("oracle", oracle)):
        gained = gains(rows, one_shot, better)
        text = f"{mean(g.attainment for g in gained):+.1f} points, accuracy {mean(g.accuracy for g in gained):+.2f}"
        found.append((f"{name} over one-shot, mean of all points", "not in the paper", text))
    return found


STUDY = Study(
    name="step_prediction",
    title="Step prediction: serving performance",
    source='"Step Prediction", the figure of serving performance under step prediction strategies, left (LLaDA, GSM8K)',
    cases=cases,
    panels=Panels(x="RPS", y=("SLO attainment, %", "accuracy, %"), line="system", facet="workload"),
    compare=compare,
    verdict=(
        "reproduced in virtual time for the predictor, at tight SLOs near the capacity; elsewhere load control sets "
        "most thresholds, and estimates matter little. Perfect estimates gain less than in the paper"
    ),
    remarks=(
        "The step predictor is the live one, LightGBM on the 11 features, trained on 100 simulated requests. The "
        "spread of requests, and how well confidences predict it, are from the simulator's model of denoising, not "
        "LLaDA. The default policy [hardly differs by estimates](../experiments/results/policies.md): its level "
        "follows the sum of all work, in which the errors of single requests cancel. The trace is the real-world trace "
        "at a quarter of its rate, on 4 instances."
    ),
)

if __name__ == "__main__":
    main(STUDY)
