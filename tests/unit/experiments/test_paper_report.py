"""docs/paper.md has the stored figures, and each study runs."""

import runpy
import sys
from pathlib import Path

import pytest

from experiments.paper.__main__ import STUDIES, page, studies
from experiments.paper.files import ROOT


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
