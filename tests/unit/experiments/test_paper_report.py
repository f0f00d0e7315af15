"""docs/paper.md agrees with the stored figures."""

import importlib

import pytest

from experiments.paper.__main__ import STUDIES
from experiments.paper.files import ROOT
from experiments.paper.study import Study, stored


@pytest.mark.parametrize("name", STUDIES)
def test_the_report_has_the_section_of_the_stored_figures(name: str) -> None:
    study: Study = importlib.import_module(f"experiments.paper.{name}").STUDY
    section = stored(study, ROOT)
    assert section is not None
    assert section in (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "paper" / f"{name}.png").is_file()
