"""When to migrate: at any step, which costs another recompute step, against at recompute steps only."""

from collections.abc import Sequence

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun
from experiments.paper.study import Case, Comparison, Row, Study, main, number, pick, simulated
from services.scheduler.policies import MigrationPolicy

PAPER = {4: 1.17, 8: 1.28, 12: 1.33, 16: 1.38}  # the table of migration granularity
RPS_PER_INSTANCE = 0.8  # GSM8K: near what an instance sustains at threshold 0.9
REQUESTS_PER_INSTANCE = 60
ANY, RECOMPUTE = "at any step", "at recompute steps"


def measure(quick: bool) -> list[Row]:
    cases: list[Case] = [
        (
            {"instances": count, "system": name},
            SimulationRun(
                rps=RPS_PER_INSTANCE * count, requests=REQUESTS_PER_INSTANCE * count, cluster=f"{count}x1", moves=moves
            ),
        )
        for name, moves in ((ANY, MigrationPolicy.AT_ANY_STEP), (RECOMPUTE, MigrationPolicy.AT_RECOMPUTE))
        for count in PAPER
    ]
    return simulated(cases, quick=quick)


def compare(rows: Sequence[Row]) -> list[Comparison]:
    found = []
    for count, paper in PAPER.items():
        anywhere, limited = (pick(rows, instances=count, system=name)[0] for name in (ANY, RECOMPUTE))
        ratio = number(anywhere, "mean latency, s") / number(limited, "mean latency, s")
        found.append(Comparison(f"normalized latency, {count} instances", f"{paper}", f"{ratio:.2f}"))
    return found


STUDY = Study(
    name="granularity",
    title="Migration granularity",
    source='"Experimental Results: Migration Granularity", its table',
    measure=measure,
    panels=Panels(x="instances", y=("mean latency, s", "migrations"), line="system"),
    compare=compare,
    remarks=(
        f"Mean latency with migration at any step over that at recompute steps only; GSM8K, {RPS_PER_INSTANCE} RPS and "
        f"{REQUESTS_PER_INSTANCE} requests an instance (the paper does not print its rate)."
    ),
)

if __name__ == "__main__":
    main(STUDY)
