"""The accuracy benchmarks over SLO multiples, at a rate that the cluster just sustains at the default SLO."""

from collections.abc import Sequence

from experiments.paper.benchmark_rates import SYSTEMS
from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun
from experiments.paper.study import Case, Comparison, Row, Study, main, number, widest_gain

RATE = {"gsm8k": 13, "mmlu-pro": 19, "mbpp": 15}
MULTIPLES = (2, 3, 5)


def cases() -> list[Case]:
    return [
        (
            {"benchmark": name, "RPS": rps, "system": system, "SLO multiple": multiple},
            SimulationRun(system=system, benchmark=name, rps=rps, slo_multiple=multiple),
        )
        for name, rps in RATE.items()
        for system in SYSTEMS
        for multiple in MULTIPLES
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    moderate = [row for row in rows if number(row, "SLO multiple") >= 3]
    tight = [row for row in rows if number(row, "SLO multiple") < 3]
    return [
        ("3x and looser: widest gain over INFaaS", "+33.9 points, accuracy -0.1 %", widest_gain(moderate, "INFaaS")),
        ("3x and looser: widest gain over Llumnix", "+42.3 points, accuracy -0.1 %", widest_gain(moderate, "Llumnix")),
        ("2x: widest gain over INFaaS", "higher (no figure given)", widest_gain(tight, "INFaaS")),
    ]


STUDY = Study(
    name="benchmark_slos",
    title="Accuracy benchmarks over SLO multiples",
    source='"Accuracy Benchmarks", the figure of results on the three benchmarks, LLaDA, by SLO',
    cases=cases,
    panels=Panels(x="SLO multiple", y=("SLO attainment, %", "accuracy, %"), line="system", facet="benchmark"),
    compare=compare,
    remarks=(
        "One rate per benchmark, chosen below the rate that the baselines sustain at 5x; the paper does not state its "
        "rates. Requests and accuracy as in the study over rates."
    ),
)

if __name__ == "__main__":
    main(STUDY)
