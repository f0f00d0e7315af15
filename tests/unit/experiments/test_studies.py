"""The studies of the paper and of the policies, and the reports on them."""

import json
import runpy
import sys
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.audit import read_audit
from experiments.paper.__main__ import STUDIES, page, studies
from experiments.paper.files import ROOT
from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun, figures
from experiments.paper.study import Study, simulate_cases
from experiments.paper.tables import Row, gains, markdown, read_table, widest_gain, write_table
from experiments.policies.bound import most_in_time
from experiments.policies.points import POINTS
from experiments.policies.rows import SYSTEMS
from experiments.policies.runs import Figures, Run
from experiments.policies.store import RunStore
from experiments.policies.study import by_point
from experiments.policies.tables import write
from experiments.policies.verdicts import Means, means, wins


def row(system: str, rps: float, attainment: float, accuracy: float) -> Row:
    return {"system": system, "RPS": rps, "SLO attainment, %": attainment, "accuracy, %": accuracy}


ROWS = [row("DiLaServe", 1, 99, 79), row("DiLaServe", 2, 95, 77), row("INFaaS", 1, 98, 79), row("INFaaS", 2, 40, 79)]


def test_a_gain_is_between_two_systems_at_the_same_setting() -> None:
    assert [gain.attainment for gain in gains(ROWS, "INFaaS")] == [1, 55]
    assert widest_gain(ROWS, "INFaaS") == "+55.0 points, accuracy -2.0 points there"


def test_a_model_without_accuracies_has_gains_in_attainment_alone() -> None:
    rows = [row("DiLaServe", 1, 95, nan), row("INFaaS", 1, 40, nan)]
    assert widest_gain(rows, "INFaaS", least=-1.0) == "+55.0 points, accuracy not known"
    assert markdown(rows).count("| - |") == 2


def test_runs_that_are_finished_are_not_repeated(tmp_path: Path) -> None:
    cases = [({"RPS": rps}, SimulationRun(system="INFaaS", rps=rps, requests=8)) for rps in (1, 2)]
    progress = tmp_path / "runs.csv"
    write_table(progress, [{**cases[0][0], **dict.fromkeys(figures(cases[1][1]), 12.0)}])
    first, second = simulate_cases(cases, progress, quick=False)
    assert first["SLO attainment, %"] == 12
    assert second["SLO attainment, %"] == 100
    assert read_table(progress) == [first, second]


def test_a_study_writes_its_table_and_plot_and_reports_both(tmp_path: Path) -> None:
    study = Study(
        name="small",
        title="A small one",
        source="nowhere",
        measure=lambda quick: ROWS[: 2 if quick else 4],
        panels=Panels(x="RPS", y=("SLO attainment, %",), line="system"),
        compare=lambda rows: [("gain", "+56.6 points", widest_gain(rows, "INFaaS"))],
        verdict="reproduced",
        remarks="None.",
    )
    study.run(tmp_path, quick=False)
    section = study.section(tmp_path)
    assert "| gain | +56.6 points | +55.0 points" in section
    assert markdown(ROWS) in section
    assert (tmp_path / "docs" / "paper" / "small.png").read_bytes().startswith(b"\x89PNG")
    stored = read_table(tmp_path / "experiments" / "results" / "paper" / "small.csv")
    assert [read["SLO attainment, %"] for read in stored] == [99, 95, 98, 40]


def score(attainment: float, accuracy: float) -> Means:
    figures = Figures(
        requests=10, attainment=attainment, accuracy=accuracy, accuracy_met=accuracy, attainment_longest=90.0,
        attainment_per_class={"5": attainment}, mean_s=5.0, p99_s=9.0, slo_s=5.0, steps=100, cpu_s=1.0,
    )  # fmt: skip
    return means([figures])


@pytest.mark.parametrize(
    ("attainment", "accuracy", "expected"),
    [
        (99.2, 77.0, True),  # better in one, equal in the other
        (99.2, 76.95, True),  # less than the tolerance worse
        (99.2, 76.8, False),
        (99.05, 77.05, False),  # better in both, by less than the tolerance
        (98.95, 78.0, True),
        (98.0, 79.0, False),
        (99.0, 77.0, False),
    ],
)
def test_a_constant_wins_only_if_it_gives_nothing_away(attainment: float, accuracy: float, expected: bool) -> None:
    assert wins(score(attainment, accuracy), score(99.0, 77.0)) is expected


@pytest.mark.parametrize(
    ("due_s", "work_s", "instances", "most"),
    [
        ([10, 10, 10], [4, 4, 2], 1, 3),  # all fit
        ([10, 10, 10], [8, 8, 2], 1, 2),  # the small one, and one of the others
        ([10, 10, 10], [8, 8, 2], 2, 3),
        ([4, 10, 10], [8, 4, 4], 1, 2.25),  # a quarter of the first, whose slots end before it
        ([10, 10, 10], [20, 20, 20], 1, 0.5),  # fractions count
    ],
)
def test_the_bound_takes_what_most_requests_need(
    due_s: list[float], work_s: list[float], instances: int, most: float
) -> None:
    arrival_s = np.zeros(3)
    assert most_in_time(arrival_s, np.array(due_s), np.array(work_s), instances) == pytest.approx(most)


@given(st.integers(0, 10_000))
def test_the_bound_is_at_least_what_a_first_come_first_served_queue_reaches(seed: int) -> None:
    random = np.random.default_rng(seed)
    arrival_s, work_s = np.sort(random.uniform(0, 20, 12)), random.uniform(0.1, 4, 12)
    due_s, free_s, in_time = arrival_s + random.uniform(2, 12, 12), 0.0, 0
    for arrived, due, work in zip(arrival_s, due_s, work_s, strict=True):
        ends = max(free_s, arrived) + work
        if ends <= due:
            free_s, in_time = ends, in_time + 1
    assert most_in_time(arrival_s, due_s, work_s, 1) >= in_time - 1e-6


def test_the_report_holds_the_rows_with_all_seeds(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs" / "policies.csv")
    point = replace(POINTS["gsm8k-16"], requests=8)
    small = [Run(point, SYSTEMS[row], 0) for row in ("infaas-0.7", "infaas-0.8")]
    for run in small:
        store.add(run, run.simulate())
    incomplete = [replace(run, seed=seed) for run in small for seed in (0, 1)]
    assert by_point(incomplete, store) == {}
    found = by_point(small, store)
    assert list(found["gsm8k-16"]) == ["infaas-0.7", "infaas-0.8"]
    write(found, [0], tmp_path)
    report = (tmp_path / "policies.md").read_text()
    assert "8 requests" in report
    assert (tmp_path / "policies.png").read_bytes().startswith(b"\x89PNG")


Package = dict[str, object]

CLEAN: Package = {"name": "httpx", "version": "0.28.1", "vulns": []}
FLAWED: Package = {"name": "h11", "version": "0.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.2"]}]}
SKIPPED: Package = {"name": "numpy", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "lines", "status"),
    [
        ([CLEAN, FLAWED], ["h11 0.1: PYSEC-1, fixed in 0.2"], 1),
        ([CLEAN], ["no known vulnerability in 1 packages"], 0),
        ([CLEAN, SKIPPED], ["NOT CHECKED: numpy: not found"], 3),
    ],
)
def test_packages_pass_that_were_checked_and_have_no_vulnerability(
    packages: list[Package], lines: list[str], status: int
) -> None:
    assert read_audit(json.dumps({"dependencies": packages, "fixes": []}), "") == (lines, status)


def test_an_unreachable_advisory_service_does_not_pass() -> None:
    lines, status = read_audit("", "Traceback\nConnectionError: no such host\n")
    assert lines == ["NOT CHECKED: no advisory service can be reached: ConnectionError: no such host"]
    assert status == 3


def test_the_page_is_written_from_the_stored_figures() -> None:
    assert (ROOT / "docs" / "paper.md").read_text(encoding="utf-8") == page(ROOT)


def test_each_study_has_a_picture_and_its_module_s_name() -> None:
    assert [study.name for study in studies()] == list(STUDIES)
    for name in STUDIES:
        assert (ROOT / "docs" / "paper" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("module", [*(f"experiments.paper.{name}" for name in STUDIES), "experiments.real_world_trace"])
def test_a_study_runs_at_toy_size(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--quick", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    stored = [path for path in (tmp_path / "experiments").rglob("*.*") if path.suffix in {".csv", ".md"}]
    assert stored
    assert all(len(path.read_text("utf-8").splitlines()) > 1 for path in stored)
    assert list(tmp_path.rglob("*.png"))
