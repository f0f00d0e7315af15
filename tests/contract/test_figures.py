"""The figures in the documents are those of the stored results."""

from pathlib import Path

import msgspec
import numpy as np

from experiments.live_policies_report import PolicyResults, measures

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
ROWS = ("dilaserve", "constant 0.7", "constant 0.8", "constant 0.9")
LOADS = (0.4, 0.85, 1.0, 1.1)


def live_cell(results: PolicyResults, row: str, load: float) -> str:
    """SLOs met and exact match, in percent."""
    return " / ".join(f"{100 * float(np.mean(values)):.1f}" for values in measures(results.of(row, load)))


def test_the_readme_has_the_figures_of_the_live_comparison() -> None:
    results = msgspec.json.decode((RESULTS / "live_policies.json").read_bytes(), type=PolicyResults)
    readme = (ROOT / "README.md").read_text("utf-8")
    for load in LOADS:
        cells = " | ".join(live_cell(results, row, load) for row in ROWS)
        assert f"| {load:g} | {cells} |" in readme
