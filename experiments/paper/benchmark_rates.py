"""The accuracy benchmarks over request rates: 16 TP-1 instances, SLO 5 times the isolated latency."""

from collections.abc import Sequence
from dataclasses import replace

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun, System
from experiments.paper.study import Case, Comparison, Row, Study, main, widest_gain

RATES = {"gsm8k": (10, 13, 16, 19), "mmlu-pro": (15, 19, 23, 27), "mbpp": (12, 15, 18, 21)}
SYSTEMS: tuple[System, ...] = ("DiLaServe", "Llumnix", "INFaaS")
IN_HAND = "DiLaServe, a step in hand"  # the others are as in the paper


def cases() -> list[Case]:
    lines = {system: SimulationRun(system=system, rps=1) for system in SYSTEMS} | {
        IN_HAND: SimulationRun(margin_steps=1.0, rps=1)
    }
    return [
        ({"benchmark": name, "system": line, "RPS": rps}, replace(run, benchmark=name, rps=rps))
        for name, rates in RATES.items()
        for line, run in lines.items()
        for rps in rates
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    return [
        ("widest gain over INFaaS", "+55 points, accuracy -0.7 %", widest_gain(rows, "INFaaS")),
        ("widest gain over Llumnix", "+56.6 points, accuracy -0.9 %", widest_gain(rows, "Llumnix")),
        ("with a step in hand: widest gain over INFaaS", "not in the paper", widest_gain(rows, "INFaaS", IN_HAND)),
        ("widest over Llumnix for at most 1 point of accuracy", "the same", widest_gain(rows, "Llumnix", least=-1.0)),
    ]


STUDY = Study(
    name="benchmark_rates",
    title="Accuracy benchmarks over request rates",
    source='"Accuracy Benchmarks", the figure of results on the three benchmarks, LLaDA, by RPS',
    cases=cases,
    panels=Panels(x="RPS", y=("SLO attainment, %", "accuracy, %"), line="system", facet="benchmark"),
    compare=compare,
    remarks=(
        "Prompt lengths of the three benchmarks, 1,319 requests per run: all of GSM8K, a random part of MMLU-Pro and "
        "of three copies of MBPP. Accuracy is that of GSM8K in the steps table at the thresholds used, for all three. "
        "Dream is not run, because its latency profile and steps table are not available."
    ),
)

if __name__ == "__main__":
    main(STUDY)
