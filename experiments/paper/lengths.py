"""Input and output length: GSM8K with more or fewer examples, and with shorter or longer outputs."""

from collections.abc import Sequence
from dataclasses import replace

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun, System
from experiments.paper.study import Case, Comparison, Study, main
from experiments.paper.tables import Row, gains, pick, widest_gain

# Rates around the one that the fixed threshold sustains at each length.
SHOTS = {2: (16, 20), 5: (13, 16), 8: (11, 13)}  # output 256
OUTPUTS = {128: (26, 32), 256: (13, 16), 512: (6.5, 8)}  # 5 examples
SYSTEMS: tuple[System, ...] = ("DiLaServe", "INFaaS")


def cases() -> list[Case]:
    lengths: list[tuple[str, SimulationRun, tuple[float, ...]]] = [
        (f"{shots} examples", SimulationRun(shots=shots, rps=1), rates) for shots, rates in SHOTS.items()
    ]
    lengths += [
        (f"{output} tokens out", SimulationRun(output_tokens=output, rps=1), rates) for output, rates in OUTPUTS.items()
    ]
    return [
        ({"length": length, "system": system, "RPS": rps}, replace(run, system=system, rps=rps))
        for length, run, rates in lengths
        for system in SYSTEMS
        for rps in rates
    ]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    found = []
    for name, part, paper in (("input", "examples", ("+81.0", "1.0")), ("output", "out", ("+82.3", "0.8"))):
        selected = [row for row in rows if str(row["length"]).endswith(part)]
        loss = min(gain.accuracy for gain in gains(selected, "INFaaS"))
        found += [
            (f"{name} length: widest gain over INFaaS", f"{paper[0]} points", widest_gain(selected, "INFaaS")),
            (f"{name} length: largest loss of accuracy", f"{paper[1]} %", f"{-loss:.1f} points"),
        ]
    behind = sum(gain.attainment < -0.5 for gain in gains(rows, "INFaaS"))
    ahead = len(pick(rows, system="DiLaServe"))
    return [*found, ("settings in which DiLaServe is behind", "none", f"{behind} of {ahead}")]


STUDY = Study(
    name="lengths",
    title="Input and output length",
    source='"Ablation Studies", the figure of the input and output length ablation (LLaDA, GSM8K)',
    cases=cases,
    panels=Panels(x="RPS", y=("SLO attainment, %", "accuracy, %"), line="system", facet="length"),
    compare=compare,
    verdict=(
        "the gain in attainment is nearly reproduced in virtual time, the loss of at most 1 % of accuracy is not, for "
        "the reason given at the benchmarks"
    ),
    remarks=(
        "The paper does not state its lengths: 2, 5 and 8 examples, and outputs of 128, 256 and 512 tokens are ours. "
        "Prompts with 2 or 8 examples are scaled 5-shot prompts, an example being 18.2 % of one. Tokens unmasked per "
        "step and accuracy by threshold are always those of 5 examples and 256 tokens."
    ),
)

if __name__ == "__main__":
    main(STUDY)
