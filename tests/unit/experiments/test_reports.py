"""The reports of experiments, from handmade results."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import typer

from experiments.audit import read_audit
from experiments.clients import chosen, clients_of, first_line, sorted_by_result
from experiments.gpu_check.roofline import LLADA_8B, Ceilings, roofline_s, work
from experiments.paper.__main__ import STUDIES, page, studies
from experiments.paper.files import ROOT
from experiments.real_world_trace import RECONFIGURED, StudyResult, cost_of_reconfiguration, figures
from shared.messages.steps import StepKind

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


PYTEST = """<testsuites><testsuite><testcase name="test_list_of_prompts"/>
<testcase name="test_tools"><skipped type="pytest.xfail" message="tools are not served"/></testcase>
<testcase name="test_parse"><failure message="[XPASS(strict)] JSON mode is not served"/></testcase>
<testcase name="test_n"><error message="failed on setup&#10;Traceback"/></testcase></testsuite></testsuites>"""
NODE = """<testsuites><testcase name="chat"/><testcase name="stream"><failure message="no text"/></testcase>
<testcase name="responses"><skipped type="todo" message="not served"/><failure message="Not Found"/></testcase>
<testcase name="object"><skipped type="todo" message="not served"/></testcase>
<testcase name="other"><skipped type="skipped" message="test name does not match pattern"/></testcase></testsuites>"""


def test_tests_are_sorted_by_their_result_and_one_that_is_marked_but_passes_fails() -> None:
    outcome = sorted_by_result(PYTEST)
    assert outcome.passed == ["list of prompts"]
    assert outcome.expected == ["tools: tools are not served"]
    assert outcome.failed == ["parse: [XPASS(strict)] JSON mode is not served", "n: failed on setup"]
    outcome = sorted_by_result(NODE)
    assert outcome.passed == ["chat"]
    assert outcome.expected == ["responses: not served (Not Found)"]
    assert outcome.failed == ["stream: no text", "object: it passes, or was skipped, but is marked: not served"]
    assert sorted_by_result("<testsuites><testsuite/></testsuites>").failed == ["no test ran"]


def test_a_reason_fits_in_a_cell() -> None:
    assert first_line("\n  a | b\nTraceback") == r"a \| b"
    assert len(first_line("x" * 1000)) == 200


def test_a_client_has_a_program_or_tests_of_a_program_of_several() -> None:
    own, other = clients_of({"agents": ["httpx"], "others.mjs": {"promptfoo": ["promptfoo"]}})
    assert (own.name, own.program.name, own.pattern) == ("agents", "agents.py", "")
    assert (other.name, other.program.name, other.pattern) == ("promptfoo", "others.mjs", "promptfoo")


def test_an_unknown_client_is_an_error_that_names_the_clients() -> None:
    assert chosen({"one": [], "two": []}, "") == ["one", "two"]
    assert chosen({"one": [], "two": []}, "two") == ["two"]
    with pytest.raises(typer.BadParameter, match="no client three; the clients are one, two"):
        chosen({"one": [], "two": []}, "three")


def outcome(attainment: float, **changes: object) -> StudyResult:
    latency = {"mean": 5.0, "p50": 4.0, "p90": 9.0, "p99": 12.0}
    result = {"slo_attainment": attainment, "latency_s": latency, "mean_threshold": 0.8, "accuracy": 0.78}
    given = {"low_load_s": 3.0, "high_load_s": 6.0, "slo_s": 13.6, "steps": 4_000_000, "cpu_s": 200.0}
    return StudyResult(result=result, peak_bytes=10**9, **{**given, **changes})  # type: ignore[arg-type]


def test_figures_are_means_over_seeds_with_the_spread_of_attainment() -> None:
    found = figures([outcome(0.9), outcome(0.94, low_load_s=5.0)])
    assert (found["attainment, %"], found["lowest"], found["highest"]) == pytest.approx((92.0, 90.0, 94.0))
    assert found["low load"] == pytest.approx(4.0)


def test_the_cost_of_reconfiguration_is_that_of_the_same_runs() -> None:
    static, changed = [outcome(0.9), outcome(0.8)], [outcome(0.91, low_load_s=2.4), outcome(0.79, low_load_s=2.4)]
    both = {
        "default policy": static,
        "default policy" + RECONFIGURED: changed,
        "DiLaServe": static,
        "DiLaServe" + RECONFIGURED: static,
    }
    first, second = cost_of_reconfiguration(both).strip().splitlines()
    assert "by +0.00 ± 1.00 points" in first
    assert "20.0 % faster" in first
    assert "+0.00 ± 0.00 points" in second


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


WEIGHTS = 7_497_318_400  # parameters of LLaDA-8B's matrices, without the embedding
H100 = Ceilings(flops_per_s=740e12, bytes_per_s=2.6e12)


def test_a_small_step_takes_the_time_to_read_the_weights() -> None:
    assert work(LLADA_8B, 32, StepKind.CACHE)[1] == pytest.approx(2 * WEIGHTS, rel=0.02)
    assert roofline_s(LLADA_8B, 32, StepKind.CACHE, H100) == pytest.approx(2 * WEIGHTS / 2.6e12, rel=0.02)


def test_only_masked_positions_use_the_head_and_the_end_of_the_last_layer() -> None:
    operations, _ = work(LLADA_8B, 4096, StepKind.RECOMPUTE)
    assert 0.85 < operations / (2 * WEIGHTS * 4096) < 0.97
