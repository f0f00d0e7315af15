"""The accuracy benchmarks over SLO multiples, at a rate that the cluster just sustains at the default SLO."""

from collections.abc import Mapping, Sequence

from experiments.paper.benchmark_rates import SYSTEMS, of_model
from experiments.paper.plots import Panels
from experiments.paper.runs import Model, SimulationRun
from experiments.paper.study import Case, Comparison, Study, main
from experiments.paper.tables import Row, number, widest_gain

RATE: Mapping[Model, Mapping[str, float]] = {
    "LLaDA": {"gsm8k": 13, "mmlu-pro": 19, "mbpp": 15},
    "Dream": {"gsm8k": 7.5, "mmlu-pro": 11, "mbpp": 8.5},
}
MULTIPLES = (2, 3, 5)


def cases() -> list[Case]:
    return [
        (
            {"model and benchmark": f"{model}, {name}", "RPS": rps, "system": system, "SLO multiple": multiple},
            SimulationRun(system=system, model=model, benchmark=name, rps=rps, slo_multiple=multiple),
        )
        for model, rates in RATE.items()
        for name, rps in rates.items()
        for system in SYSTEMS
        for multiple in MULTIPLES
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    llada = of_model(rows, "LLaDA")
    moderate = [row for row in llada if number(row, "SLO multiple") >= 3]
    tight = [row for row in llada if number(row, "SLO multiple") < 3]
    return [
        ("3x and looser: widest gain over INFaaS", "+33.9 points, accuracy -0.1 %", widest_gain(moderate, "INFaaS")),
        ("3x and looser: widest gain over Llumnix", "+42.3 points, accuracy -0.1 %", widest_gain(moderate, "Llumnix")),
        ("2x: widest gain over INFaaS", "higher (no figure given)", widest_gain(tight, "INFaaS")),
        ("Dream: widest gain over INFaaS", "in the same figure", widest_gain(of_model(rows, "Dream"), "INFaaS")),
    ]


STUDY = Study(
    name="benchmark_slos",
    title="Accuracy benchmarks over SLO multiples",
    source='"Accuracy Benchmarks", the figure of results on the three benchmarks, LLaDA and Dream, by SLO',
    cases=cases,
    panels=Panels(x="SLO multiple", y=("SLO attainment, %", "accuracy, %"), line="system", facet="model and benchmark"),
    compare=compare,
    verdict="reproduced in virtual time",
    remarks=(
        "One rate per model and benchmark, chosen below the rate that the baselines sustain at 5x; the paper does not "
        "state its rates. Requests, accuracy and Dream's inputs as in the study over rates."
    ),
)

if __name__ == "__main__":
    main(STUDY)
