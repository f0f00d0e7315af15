"""Two readings of Algorithm 3 (when a threshold changes), and of Algorithm 2 (the window of load control)."""

from collections.abc import Sequence
from dataclasses import replace

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun, System
from experiments.paper.study import Case, Comparison, Study, main
from experiments.paper.tables import Row, gains

READINGS: tuple[System, ...] = ("DiLaServe", "at assignment", "smallest SLO")
RATES = (10, 13, 16, 19)
ONE_SLO, MIXED_SLOS = "one SLO", "mixed SLOs"


def cases() -> list[Case]:
    return [
        ({"SLOs": slos, "system": system, "RPS": rps}, replace(run, system=system, rps=rps))
        for slos, run in ((ONE_SLO, SimulationRun(rps=1)), (MIXED_SLOS, SimulationRun(rps=1, mixed_slos=True)))
        for system in READINGS
        if (slos, system) != (ONE_SLO, "smallest SLO")  # with one SLO it is the mean
        for rps in RATES
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    return [
        (f"{system} against DiLaServe here, {slos}", "not in the paper", _at_each_rate(rows, slos, system))
        for slos in (ONE_SLO, MIXED_SLOS)
        for system in READINGS[1:]
        if any(row["SLOs"] == slos and row["system"] == system for row in rows)
    ]


def _at_each_rate(rows: Sequence[Row], slos: str, system: str) -> str:
    of_slos = [row for row in rows if row["SLOs"] == slos]
    return ", ".join(f"{gain.attainment:+.1f} / {gain.accuracy:+.1f}" for gain in gains(of_slos, "DiLaServe", system))


STUDY = Study(
    name="algorithm_readings",
    title="Readings of Algorithms 2 and 3",
    source="Algorithm 3 updates a threshold when a request migrated; Algorithm 2 has one SLO",
    cases=cases,
    panels=Panels(x="RPS", y=("SLO attainment, %", "accuracy, %"), line="system", facet="SLOs"),
    compare=compare,
    verdict=(
        "not in the paper. With one SLO, an update at every step attains more than the text's update at assignment. "
        "With mixed SLOs the text's is better, and the smallest SLO as the window is much better, at a cost in accuracy"
    ),
    remarks=(
        "GSM8K on 16 TP-1. DiLaServe here updates every threshold at every step. *At assignment* follows the text of "
        "Algorithm 3: a threshold changes when its request is assigned or migrates, which is possible at recompute "
        "steps. Requests with SLOs of their own need a window for load control: the mean SLO of the active requests "
        "here, or *the smallest SLO*. Half of the mixed SLOs are 6.6 s, half 39.6 s. Figures are points of attainment "
        f"and of accuracy at {', '.join(map(str, RATES))} RPS."
    ),
)

if __name__ == "__main__":
    main(STUDY)
