"""The accuracy benchmarks over request rates: 16 TP-1 instances, SLO 5 times the isolated latency."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from experiments.paper.files import STEPS
from experiments.paper.plots import Panels
from experiments.paper.runs import Model, SimulationRun, System
from experiments.paper.study import Case, Comparison, Study, main
from experiments.paper.tables import Row, number, widest_gain
from simulator.steps_table import read_steps

RATES = {"gsm8k": (10, 13, 16, 19), "mmlu-pro": (15, 19, 23, 27), "mbpp": (12, 15, 18, 21)}
# Dream takes nearly twice the steps: rates around the one that the fixed threshold sustains
DREAM_RATES = {"gsm8k": (6, 7.5, 9, 10.5), "mmlu-pro": (9, 11, 13, 15), "mbpp": (7, 8.5, 10, 11.5)}
MODELS: Mapping[Model, Mapping[str, tuple[float, ...]]] = {"LLaDA": RATES, "Dream": DREAM_RATES}
SYSTEMS: tuple[System, ...] = ("DiLaServe", "Llumnix", "INFaaS")
CONSTANTS = (0.7, 0.8)  # INFaaS has 0.9
PAPER_LOSS = 0.015 / (0.9 - 0.7)  # share of the accuracy per unit of the threshold: the paper states 1.5 % to 0.7
PAPER_ACCURACY = "accuracy by the paper's loss, %"
IN_HAND = "DiLaServe, a step in hand"  # the others are as in the paper


def cases() -> list[Case]:
    lines = {system: SimulationRun(system=system, rps=1) for system in SYSTEMS} | {
        IN_HAND: SimulationRun(margin_steps=1.0, rps=1),
        "default policy": SimulationRun(system="default policy", rps=1),
    }
    lines |= {f"INFaaS at {fixed}": SimulationRun(system="INFaaS", threshold=fixed, rps=1) for fixed in CONSTANTS}
    return [
        (
            {"model and benchmark": f"{model}, {name}", "system": line, "RPS": rps},
            replace(run, model=model, benchmark=name, rps=rps),
        )
        for model, benchmarks in MODELS.items()
        for name, rates in benchmarks.items()
        for line, run in lines.items()
        for rps in rates
    ]


def of_model(rows: Sequence[Row], model: Model) -> list[Row]:
    return [row for row in rows if str(row["model and benchmark"]).startswith(model)]


def with_paper_accuracy(row: Row) -> Row:
    """The row with its accuracy if this falls as the paper states from 0.9 to 0.7, and in proportion below."""
    accuracies = read_steps(STEPS).accuracy_at(np.array([0.9]))
    assert accuracies is not None
    highest = float(accuracies[0])
    return {**row, PAPER_ACCURACY: highest * (1 - PAPER_LOSS * (0.9 - number(row, "mean threshold")))}


def compare(rows: Sequence[Row]) -> list[Comparison]:
    llada, dream = [with_paper_accuracy(row) for row in of_model(rows, "LLaDA")], of_model(rows, "Dream")
    return [
        ("LLaDA: widest gain over INFaaS", "+55 points, accuracy -0.7 %", widest_gain(llada, "INFaaS")),
        ("LLaDA: widest gain over Llumnix", "+56.6 points, accuracy -0.9 %", widest_gain(llada, "Llumnix")),
        (
            "LLaDA: widest gain over INFaaS, with the loss of accuracy that the paper states",
            "+55 points, accuracy -0.7 %",
            widest_gain(llada, "INFaaS", accuracy=PAPER_ACCURACY),
        ),
        (
            "LLaDA: widest over INFaaS for at most 1 point of that accuracy",
            "the same",
            widest_gain(llada, "INFaaS", least=-1.0, accuracy=PAPER_ACCURACY),
        ),
        (
            "LLaDA: widest over Llumnix for at most 1 point of accuracy",
            "the same",
            widest_gain(llada, "Llumnix", least=-1.0),
        ),
        ("LLaDA, a step in hand: widest gain over INFaaS", "not in the paper", widest_gain(llada, "INFaaS", IN_HAND)),
        (
            "LLaDA, widest gain over INFaaS at a constant 0.8, which knows the rate",
            "not in the paper",
            widest_gain(llada, "INFaaS at 0.8"),
        ),
        ("Dream: widest gain over INFaaS", "in the same figure", widest_gain(dream, "INFaaS")),
        ("Dream: widest gain over Llumnix", "in the same figure", widest_gain(dream, "Llumnix")),
    ]


STUDY = Study(
    name="benchmark_rates",
    title="Accuracy benchmarks over request rates",
    source='"Accuracy Benchmarks", the figure of results on the three benchmarks, LLaDA and Dream, by RPS',
    cases=cases,
    panels=Panels(x="RPS", y=("SLO attainment, %", "accuracy, %"), line="system", facet="model and benchmark"),
    compare=compare,
    verdict=(
        "the gain in attainment is reproduced in virtual time. The loss of less than 1 % of accuracy is not with the "
        "published accuracies, which fall more below 0.8 than the paper's; with the loss that the paper states, it is "
        "at nearly its gain"
    ),
    remarks=(
        "The loss that the paper states is 1.5 % from 0.9 to 0.7, in its introduction; below, the same slope is "
        "assumed, and each run's mean threshold is weighted by tokens. "
        "Prompt lengths of the three benchmarks, 1,319 requests per run: all of GSM8K, a random part of MMLU-Pro and "
        "of three copies of MBPP. Accuracy is that of GSM8K in the steps table at the thresholds used, for all three. "
        "Dream's latency profile is LLaDA's model with Dream's dimensions (`experiments/latency_model.py` of commit "
        "63993e18). Of its tokens per step, 1.79 at 0.9 is published; the others are LLaDA's curve scaled. No accuracy "
        "by threshold is published for it, so none is shown. INFaaS at 0.7 and at 0.8 has a constant threshold that is "
        "picked with the rates in view; a deployment does not know them."
    ),
)

if __name__ == "__main__":
    main(STUDY)
