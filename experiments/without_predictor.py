"""A model without a step predictor: the default policy with estimates from each request's own steps, beside constant
thresholds, and beside the same policy with a predictor. In simulation.

python -m experiments.without_predictor
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.report import RESULTS, Report
from services.scheduler.registry import DEFAULT_POLICY
from services.scheduler.settings import SchedulerSettings
from shared.profile import read_profile
from simulator.lengths import DATA as LENGTHS
from simulator.lengths import benchmark_lengths
from simulator.result import summarize
from simulator.scenario import PredictorName, Scenario, simulate
from simulator.steps_table import read_steps
from simulator.workload import constant_rate_trace

DATA = Path(__file__).with_name("data")
INSTANCES = (1,) * 8  # TP-1 on eight simulated H100s
ROWS: tuple[tuple[str, str, float, PredictorName], ...] = (
    ("constant 0.9", "fixed", 0.9, "none"),
    ("constant 0.7", "fixed", 0.7, "none"),
    ("default policy, no predictor", DEFAULT_POLICY, 0.9, "none"),
    ("default policy, step predictor", DEFAULT_POLICY, 0.9, "trained"),
)


def main(
    *,
    rates: Annotated[str, typer.Option(help="Requests per second.")] = "4,8",
    slo: Annotated[float, typer.Option(help="SLO in seconds.")] = 10.0,
    out: Annotated[Path, typer.Option()] = RESULTS / "without_predictor.md",
) -> None:
    """Serve GSM8K's lengths at each rate, in each way."""
    report = Report(
        "A model without a step predictor, simulated",
        f"Eight H100s with one instance of LLaDA-8B each, GSM8K's lengths, SLO {slo:g} s, seed 0.",
    )
    report.add_columns("requests/s", "served by", "SLO attainment", "accuracy", "mean threshold", "mean latency, s")
    for rate in map(float, rates.split(",")):
        for name, policy, threshold, predictor in ROWS:
            report.add_row(f"{rate:g}", name, *_serve(rate, slo, policy, threshold, predictor))
    report.write(out)


def _serve(rate: float, slo_s: float, policy: str, threshold: float, predictor: PredictorName) -> list[str]:
    scenario = Scenario(
        profile=read_profile(DATA / "h100-llada8b.csv"),
        steps=read_steps(DATA / "steps-llada-gsm8k.csv"),
        instances=INSTANCES,
        settings=SchedulerSettings(model="simulated", policy=policy, threshold=threshold, cache="dual"),
        predictor=predictor,
        slo_s=slo_s,
    )
    random = np.random.default_rng(0)
    workload = constant_rate_trace(benchmark_lengths("gsm8k", LENGTHS), rate, random)
    result = summarize(simulate(scenario, workload), workload)
    attainment, accuracy = f"{result['slo_attainment']:.1%}", f"{result['accuracy']:.1%}"
    return [attainment, accuracy, f"{result['mean_threshold']:.3f}", f"{result['latency_s']['mean']:.1f}"]


if __name__ == "__main__":
    typer.run(main)
