"""The figures in the documents are those of the stored results, or of the commands beside them."""

import csv
import re
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dilaserve.cli import run
from experiments.live_policies_report import PolicyResults, measures

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
ROWS = ("dilaserve", "constant 0.7", "constant 0.8", "constant 0.9")
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
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


def test_the_page_on_capacity_has_the_demo_models_accuracy_by_threshold() -> None:
    with (RESULTS / "cache_effect.csv").open(newline="", encoding="utf-8") as file:
        exact = {row["threshold"]: row["exact match"] for row in csv.DictReader(file) if row["cache"] == "dual"}
    high, low = (exact[threshold].removesuffix(".0%") for threshold in ("0.9", "0.5"))
    page = (ROOT / "docs" / "capacity.md").read_text("utf-8")
    assert f"accuracy falls from {high} % at 0.9 to {low} % at 0.5" in page


def test_the_readme_has_the_time_to_a_new_users_first_answer() -> None:
    rows = re.findall(r"^\| ([\w ]+) \| ([\d.]+) \|$", (RESULTS / "new_user.md").read_text("utf-8"), re.MULTILINE)
    until_s = {name: float(seconds) for name, seconds in rows}
    installed_s, answered_s = until_s["packages installed"], until_s["first answer"]
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"took {answered_s:.0f} s on two cores" in readme
    assert f"{installed_s:.0f} s until the packages were installed" in readme
    assert f"and {answered_s - installed_s:.0f} s for the rest" in readme


def test_the_page_on_reliability_has_the_figures_of_the_long_run() -> None:
    report = (RESULTS / "soak.md").read_text("utf-8")
    page = " ".join((ROOT / "docs" / "reliability.md").read_text("utf-8").split())
    [accepted] = re.findall(r"^accepted: (\d+) = .* \+ 0 lost$", report, re.MULTILINE)
    grown = re.findall(r"^\| ([\w-]+) \| (\d+) \| (\d+) \|.* NO \|$", report, re.MULTILINE)
    assert f"{int(accepted):,} requests were accepted; none was lost" in page
    assert [f"{service}: from {before} to {later} MB" for service, before, later in grown] == [
        "nats-server: from " + text for text in re.findall(r"memory rose from (\d+ to \d+ MB)", page)
    ]
    [faults] = re.findall(r"^faults: (.*)$", report, re.MULTILINE)
    assert f"killed or stopped {WORDS[faults.count('nats-server')]} times" in page


def test_the_page_on_operations_has_the_planning_time_of_the_largest_cluster() -> None:
    report = (RESULTS / "planner_scale.md").read_text("utf-8")
    row = re.compile(r"^\| 1024 \| ([^|]+) \| (?:1, cache|2) \| [\d.]+ \| ([\d.]+) \|", re.MULTILINE)
    plans_s: dict[str, float] = defaultdict(float)  # by layout of the nodes, of both stages
    for nodes, elapsed_s in row.findall(report):
        plans_s[nodes] += float(elapsed_s)
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert f"1,024 in [{max(plans_s.values()):.0f} s](../experiments/results/planner_scale.md)" in page


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cluster", ["8x1", "4x2", "2x4"])
def test_the_page_on_capacity_has_the_simulated_figures(cluster: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    data = ROOT / "experiments" / "data"
    files = ["--profile", str(data / "h100-llada8b.csv"), "--steps", str(data / "steps-llada-gsm8k.csv")]
    workload = ["--workload", "gsm8k", "--rps", "6", "--slo", "15"]
    assert run(["simulate", *workload, *files, "--cluster", cluster, "--out", str(out)]) == 0
    result = msgspec.json.decode(out.read_bytes())
    latency = result["latency_s"]
    row = (
        f"| `{cluster}` | {100 * result['slo_attainment']:.1f} % | {latency['mean']:.1f}, {latency['p99']:.1f} | "
        f"{result['mean_threshold']:.3f} |"
    )
    assert row in (ROOT / "docs" / "capacity.md").read_text("utf-8")
