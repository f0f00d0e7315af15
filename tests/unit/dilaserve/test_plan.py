"""`dilaserve plan` that searches the smallest cluster, from files to files."""

from pathlib import Path

import msgspec
import pytest

from dilaserve.cli import run
from tests.support.workloads import PROFILE, a_class, workload


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    content = workload(classes=[a_class(rps=4.0, slo_s=8.0)], slo_s=8.0, nodes=[4])
    (tmp_path / "workload.json").write_bytes(msgspec.json.encode(content))
    (tmp_path / "profile.csv").write_text(PROFILE.to_csv())
    files = ["--workload", str(tmp_path / "workload.json"), "--profile", str(tmp_path / "profile.csv")]
    return ["plan", *files, "--out", str(tmp_path / "plan.json"), "--json"]


@pytest.mark.parametrize(
    "target", [["--min-threshold", "0.85"], pytest.param(["--min-attainment", "0.9"], marks=pytest.mark.slow)]
)
def test_the_plan_is_that_of_the_smallest_cluster_that_suffices(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], target: list[str]
) -> None:
    assert run([*arguments, *target]) == 0
    plan = msgspec.json.decode((tmp_path / "plan.json").read_bytes())
    assert plan == msgspec.json.decode(capsys.readouterr().out)
    assert plan["gpus"] == sum(len(instance["gpus"]) for instance in plan["instances"])
    for tried in plan["tried"]:
        assert tried["suffices"] == (tried["gpus"] >= plan["gpus"])
        if tried["suffices"] and target[0] == "--min-attainment":
            assert tried["slo_attainment"] >= 0.9


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (["--min-threshold", "0.95"], "at most the highest threshold, 0.9"),
        (["--min-attainment", "2"], "'--min-attainment'"),
        (["--min-threshold", "0.8", "--current", "plan.json"], "--current: not with --min-threshold"),
    ],
)
def test_wrong_targets_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str], wrong: list[str], error: str
) -> None:
    assert run([*arguments, *wrong]) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("slo_s", "target", "status", "error"),
    [
        (0.01, ["--min-threshold", "0.8"], 1, "no number of GPUs suffices"),
        (1e6, ["--min-attainment", "0.9"], 2, "4e+07 requests, too many to simulate"),
    ],
)
def test_a_target_that_cannot_be_met_or_simulated_is_reported(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    slo_s: float, target: list[str], status: int, error: str,
) -> None:  # fmt: skip
    content = workload(classes=[a_class(rps=4.0, slo_s=slo_s)], nodes=[4])
    (tmp_path / "workload.json").write_bytes(msgspec.json.encode(content))
    assert run([*arguments, *target]) == status
    assert error in capsys.readouterr().err
