"""docs/paper.md says what the stored figures say."""

import csv
import importlib

import pytest

from experiments.paper.__main__ import STUDIES
from experiments.paper.files import ROOT
from experiments.paper.study import Row, Study, markdown

STORED = ROOT / "experiments" / "results" / "paper"


def stored(name: str) -> list[Row]:
    """The rows of the study's CSV."""
    with (STORED / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize("name", [name for name in STUDIES if (STORED / f"{name}.csv").exists()])
def test_the_report_compares_and_lists_the_stored_figures(name: str) -> None:
    study: Study = importlib.import_module(f"experiments.paper.{name}").STUDY
    report = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = stored(name)
    for compared in study.compare(rows):
        assert f"| {compared.what} | {compared.paper} | {compared.ours} |" in report
    assert markdown(study.table(rows)) in report
    assert (ROOT / "docs" / "paper" / f"{name}.png").is_file()
