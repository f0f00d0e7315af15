"""Serving without a KV cache: every step computes the whole sequence."""

from collections.abc import Sequence

from experiments.paper.benchmark_rates import SYSTEMS
from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun
from experiments.paper.study import Case, Comparison, Study, main
from experiments.paper.tables import Row, widest_gain

RATES = (3, 4, 5)
MULTIPLES = (2, 3)  # at TIGHT_RPS; 5 is in the study over rates
TIGHT_RPS = 3
BY_RATE, BY_SLO = "RPS at 5x SLO", f"SLO multiple at {TIGHT_RPS} RPS"
REQUESTS = 400


def cases() -> list[Case]:
    settings = [(BY_RATE, rps, rps, 5) for rps in RATES]
    settings += [(BY_SLO, multiple, TIGHT_RPS, multiple) for multiple in (*MULTIPLES, 5)]
    return [
        (
            {"over": over, "x": x, "system": system},
            SimulationRun(system=system, rps=rps, slo_multiple=multiple, cache=False, requests=REQUESTS),
        )
        for system in SYSTEMS
        for over, x, rps, multiple in settings
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    tight = [row for row in rows if row["over"] == BY_SLO]
    loaded = [row for row in rows if row["over"] == BY_RATE]
    return [
        ("tight SLOs: widest gain over Llumnix", "+25.5 points, no drop", widest_gain(tight, "Llumnix")),
        ("tight SLOs: widest gain over INFaaS", "+25.5 points, no drop", widest_gain(tight, "INFaaS")),
        ("over rates: widest gain over INFaaS", "significant (no figure given)", widest_gain(loaded, "INFaaS")),
    ]


STUDY = Study(
    name="no_cache",
    title="Serving without caching",
    source='"Experimental Results: Serving without Caching", GSM8K without KV caching (LLaDA)',
    cases=cases,
    panels=Panels(x="x", y=("SLO attainment, %", "accuracy, %"), line="system", facet="over"),
    compare=compare,
    verdict="reproduced in virtual time, with smaller gains at tight SLOs",
    remarks=(
        f"{REQUESTS} requests per run, because the cluster sustains a lower rate; the SLO is a multiple of the "
        "isolated latency without a cache. The tokens unmasked per step were measured without a cache."
    ),
)

if __name__ == "__main__":
    main(STUDY)
