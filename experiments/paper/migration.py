"""Tail latency with and without migration between steps, over rates and output lengths."""

from collections.abc import Sequence

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun
from experiments.paper.study import Case, Comparison, Row, Study, main, number, pick
from services.scheduler.policies import MigrationPolicy

PROMPT = 256
RATES = {128: (20, 34), 256: (10, 17), 512: (5, 8.5)}  # by output length: half of the sustained rate, and near it
REQUESTS = 800
WITH, WITHOUT = "with migration", "without"


def cases() -> list[Case]:
    return [
        (
            {"output tokens": output, "RPS": rps, "system": name},
            SimulationRun(rps=rps, prompt_tokens=PROMPT, output_tokens=output, moves=moves, requests=REQUESTS),
        )
        for output, rates in RATES.items()
        for name, moves in ((WITH, MigrationPolicy.AT_RECOMPUTE), (WITHOUT, MigrationPolicy.NEVER))
        for rps in rates
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    saved = [
        100 * (1 - number(moved, "P99 latency, s") / number(stayed, "P99 latency, s"))
        for moved, stayed in zip(pick(rows, system=WITH), pick(rows, system=WITHOUT), strict=True)
    ]
    return [
        ("P99 latency, largest reduction", "19 %", f"{max(saved):.0f} %"),
        ("P99 latency, smallest reduction", "above 0", f"{min(saved):.0f} %"),
    ]


STUDY = Study(
    name="migration",
    title="Migration effectiveness",
    source='"Experimental Results: Migration Granularity", the figure of migration effectiveness, input 256 tokens',
    cases=cases,
    panels=Panels(x="RPS", y=("P99 latency, s", "mean latency, s"), line="system", facet="output tokens"),
    compare=compare,
    remarks=(
        f"The paper does not state its rates; {REQUESTS} requests per run. Both systems are DiLaServe; requests "
        "migrate at recompute steps, or never."
    ),
)

if __name__ == "__main__":
    main(STUDY)
