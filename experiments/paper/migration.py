"""What migration between steps is worth: tail latency with and without it, over rates and output lengths."""

from collections.abc import Sequence

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun
from experiments.paper.study import Case, Comparison, Row, Study, main, number, pick, simulated
from services.scheduler.policies import MigrationPolicy

PROMPT = 256
RATES = {128: (20, 34), 256: (10, 17), 512: (5, 8.5)}  # by output length: half of, and near, what the cluster sustains
REQUESTS = 800
WITH, WITHOUT = "with migration", "without"


def measure(quick: bool) -> list[Row]:
    cases: list[Case] = [
        (
            {"output tokens": output, "RPS": rps, "system": name},
            SimulationRun(rps=rps, prompt_tokens=PROMPT, output_tokens=output, moves=moves, requests=REQUESTS),
        )
        for output, rates in RATES.items()
        for name, moves in ((WITH, MigrationPolicy.AT_RECOMPUTE), (WITHOUT, MigrationPolicy.NEVER))
        for rps in rates
    ]
    return simulated(cases, quick=quick)


def compare(rows: Sequence[Row]) -> list[Comparison]:
    saved = [
        100 * (1 - number(moved, "P99 latency, s") / number(stayed, "P99 latency, s"))
        for moved, stayed in zip(pick(rows, system=WITH), pick(rows, system=WITHOUT), strict=True)
    ]
    return [
        Comparison("P99 latency, greatest reduction", "19 %", f"{max(saved):.0f} %"),
        Comparison("P99 latency, least reduction", "above 0", f"{min(saved):.0f} %"),
    ]


STUDY = Study(
    name="migration",
    title="Migration effectiveness",
    source='"Experimental Results: Migration Granularity", the figure of migration effectiveness, input 256 tokens',
    measure=measure,
    panels=Panels(x="RPS", y=("P99 latency, s", "mean latency, s"), line="system", facet="output tokens"),
    compare=compare,
    remarks=(
        f"The paper does not print its rates; {REQUESTS} requests a run. Both sides are DiLaServe; requests move at "
        "recompute steps, or never."
    ),
)

if __name__ == "__main__":
    main(STUDY)
