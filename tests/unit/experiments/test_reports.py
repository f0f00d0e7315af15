"""The audit of the packages, and the page and the studies of the paper."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from experiments.audit import read_audit
from experiments.paper.__main__ import STUDIES, page, studies
from experiments.paper.files import ROOT

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
