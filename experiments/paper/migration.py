"""Tail latency with and without migration, over rates and output lengths, and for requests of mixed lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun, System
from experiments.paper.study import Case, Comparison, Study, main
from experiments.paper.tables import Row, number, pick
from services.scheduler.policies.migration import MigrationPolicy

PROMPT = 256
RATES = {128: (20, 34), 256: (10, 17), 512: (5, 8.5)}  # by output length: half of the sustained rate, and near it
MIXED_RATES = (8, 12, 16)  # of ShareGPT's lengths
REQUESTS, MIXED_REQUESTS = 800, 5000
MIXED = "ShareGPT's"
WITH, WITHOUT, HYSTERESIS = "with migration", "without", "with hysteresis"
RANDOM: System = "at random"  # DiLaServe, but an arrival starts on any instance
# By policy: the same with hysteresis; None: not run
VARIANTS: Mapping[System, System | None] = {
    "DiLaServe": "with hysteresis",
    "Llumnix": "Llumnix with hysteresis",
    RANDOM: None,
}


def cases() -> list[Case]:
    of_one_length: list[Case] = [
        (
            {"output tokens": str(output), "system": name, "RPS": rps},
            SimulationRun(rps=rps, prompt_tokens=PROMPT, output_tokens=output, moves=moves, requests=REQUESTS),
        )
        for output, rates in RATES.items()
        for name, moves in ((WITH, MigrationPolicy.AT_RECOMPUTE), (WITHOUT, MigrationPolicy.NEVER))
        for rps in rates
    ]
    return of_one_length + [
        ({"output tokens": MIXED, "system": f"{policy}, {name}", "RPS": rps}, replace(run, rps=rps))
        for policy in VARIANTS
        for name, run in _mixed(policy).items()
        for rps in MIXED_RATES
    ]


def _mixed(policy: System) -> Mapping[str, SimulationRun]:
    run = SimulationRun(system=policy, benchmark="sharegpt", rps=1, requests=MIXED_REQUESTS)
    runs = {WITH: run, WITHOUT: replace(run, moves=MigrationPolicy.NEVER)}
    variant = VARIANTS[policy]
    return runs if variant is None else {**runs, HYSTERESIS: replace(run, system=variant)}


def saved(rows: Sequence[Row], than: str, system: str) -> list[float]:
    """The reduction of the P99 latency at each setting, in percent."""
    key = "P99 latency, s"
    return [
        100 * (1 - number(moved, key) / number(stayed, key))
        for moved, stayed in zip(pick(rows, system=system), pick(rows, system=than), strict=True)
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    of_one_length = saved(rows, WITHOUT, WITH)
    return [
        ("P99 latency, one length, largest reduction", "19 %", f"{max(of_one_length):.0f} %"),
        ("P99 latency, one length, smallest reduction", "above 0", f"{min(of_one_length):.0f} %"),
        *(
            (
                f"{policy}, mixed lengths, {name}: reduction of P99 latency",
                "not in the paper",
                ", ".join(f"{share:.0f} %" for share in saved(rows, f"{policy}, {WITHOUT}", f"{policy}, {name}")),
            )
            for policy in VARIANTS
            for name in _mixed(policy)
            if name != WITHOUT
        ),
    ]


STUDY = Study(
    name="migration",
    title="Migration effectiveness",
    source='"Experimental Results: Migration Granularity", the figure of migration effectiveness, input 256 tokens',
    cases=cases,
    panels=Panels(x="RPS", y=("P99 latency, s", "mean latency, s"), line="system", facet="output tokens"),
    compare=compare,
    verdict=(
        "differs: the tail hardly falls, because arrivals go to the instance with the least load. Where they go to any "
        "instance, migration shortens the tail much more"
    ),
    remarks=(
        f"The paper does not state its rates; {REQUESTS} requests of one length per run, {MIXED_REQUESTS} of "
        f"ShareGPT's lengths, at {', '.join(map(str, MIXED_RATES))} RPS. Requests migrate at recompute steps, or "
        "never. With hysteresis a request moves only if the other instance's step takes at least a tenth less "
        "(Llumnix: a tenth fewer tokens). *At random* is DiLaServe, but an arrival starts on any instance with room."
    ),
)

if __name__ == "__main__":
    main(STUDY)
