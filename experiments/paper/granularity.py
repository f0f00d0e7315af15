"""Migration at any step, which costs another recompute step, against migration at recompute steps only."""

from collections.abc import Sequence

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun
from experiments.paper.study import Case, Comparison, Study, main
from experiments.paper.tables import Row, number, pick
from services.scheduler.policies.migration import MigrationPolicy

PAPER = {4: 1.17, 8: 1.28, 12: 1.33, 16: 1.38}  # the table of migration granularity
RPS_PER_INSTANCE = 0.8  # GSM8K: near the rate that an instance sustains at threshold 0.9
REQUESTS_PER_INSTANCE = 60
ANY, RECOMPUTE = "at any step", "at recompute steps"


def cases() -> list[Case]:
    return [
        (
            {"instances": count, "system": name},
            SimulationRun(
                rps=RPS_PER_INSTANCE * count, requests=REQUESTS_PER_INSTANCE * count, cluster=f"{count}x1", moves=moves
            ),
        )
        for name, moves in ((ANY, MigrationPolicy.AT_ANY_STEP), (RECOMPUTE, MigrationPolicy.AT_RECOMPUTE))
        for count in PAPER
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    found = []
    for count, paper in PAPER.items():
        anywhere, limited = (pick(rows, instances=count, system=name)[0] for name in (ANY, RECOMPUTE))
        ratio = number(anywhere, "mean latency, s") / number(limited, "mean latency, s")
        found.append((f"normalized latency, {count} instances", f"{paper}", f"{ratio:.2f}"))
    return found


STUDY = Study(
    name="granularity",
    title="Migration granularity",
    source='"Experimental Results: Migration Granularity", its table',
    cases=cases,
    panels=Panels(x="instances", y=("mean latency, s", "migrations"), line="system"),
    compare=compare,
    verdict="reproduced in virtual time, with a smaller effect",
    remarks=(
        f"Mean latency with migration at any step, divided by that at recompute steps only; GSM8K, {RPS_PER_INSTANCE} "
        f"RPS and {REQUESTS_PER_INSTANCE} requests per instance (the paper does not state its rate)."
    ),
)

if __name__ == "__main__":
    main(STUDY)
