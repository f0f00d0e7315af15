"""The pure parts of the paper's studies: comparisons, tables, stored runs."""

from math import nan
from pathlib import Path

from experiments.paper.plots import Panels
from experiments.paper.runs import SimulationRun, figures
from experiments.paper.study import Study, simulate_cases
from experiments.paper.tables import Row, gains, markdown, read_table, widest_gain, write_table


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
