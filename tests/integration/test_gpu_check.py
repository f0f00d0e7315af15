"""The check of GPUs, at toy size on a CPU."""

import os
import re
import subprocess
import sys
from importlib.metadata import distribution, files, packages_distributions, requires
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.gpu_check import __main__ as command
from experiments.gpu_check import kernels
from experiments.gpu_check.findings import Findings, Setup, stored
from experiments.gpu_check.stages import STAGES, run_stage
from services.worker.model.attention import RequestSpans, fallback

ROOT = Path(__file__).parents[2]
TOY = Setup(torch.device("cpu"), is_toy=True)
TOY_OPTIONS = ["--device", "cpu", "--toy"]
COMMANDED = ["environment", "golden logits", "ranks"]  # the stages that the test of the command runs


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STAGES if name not in COMMANDED])
def test_every_stage_passes_at_toy_size(name: str, tmp_path: Path) -> None:
    found = run_stage(name, TOY, tmp_path)
    assert has_passed(found)
    assert stored(tmp_path, name) == found


def has_passed(found: Findings | None) -> bool:
    assert found is not None
    assert (found.status, found.reason) == ("passed", "")
    return bool(found.rows) and (bool(found.checks) or found.stage == "environment")


def wrong(q: Tensor, k: Tensor, v: Tensor, spans: RequestSpans) -> Tensor:
    return 1.1 * fallback(q, k, v, spans)


@pytest.mark.parametrize("is_right", [False, True])
def test_a_wrong_kernel_or_one_under_another_name_fails_its_stage(
    is_right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_right:
        monkeypatch.setattr(kernels, "missing_feature", lambda name, _: "" if name == "torch" else "missing")
    monkeypatch.setattr(kernels, "kernel_of", lambda _: fallback if is_right else wrong)
    found = run_stage("attention", TOY, tmp_path)
    assert (found.status, list(found.checks.values())) == ("FAILED", [is_right, not is_right])


def link_needed_packages(directory: Path) -> None:
    """Link the packages that the check may use, with those that they need, into this directory."""
    installed = {name for names in packages_distributions().values() for name in names}
    linked, left = set[str](), list(command.PACKAGES)
    while left:
        name = normal(left.pop())
        if name in linked or name not in map(normal, installed):
            continue
        linked.add(name)
        left += [re.split(r"[^\w.-]", line)[0] for line in requires(name) or [] if "extra ==" not in line]
        for top in {file.parts[0] for file in files(name) or [] if file.parts[0] not in ("..", "__pycache__")}:
            (directory / top).symlink_to(Path(str(distribution(name).locate_file(top))))


def normal(name: str) -> str:
    return name.lower().replace("_", "-")


@pytest.mark.slow
def test_the_command_needs_four_packages_and_no_virtual_environment(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    link_needed_packages(packages)
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages), "DILASERVE_SHARED": str(tmp_path / "none")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, *arguments], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)

    def written() -> list[float]:
        return [path.stat().st_mtime for path in (ROOT / "experiments" / "results").glob("gpu.md")]

    before = written()
    assert "No module named 'structlog'" in run("-c", "import structlog").stderr
    paths = ["--saved", str(tmp_path / "saved")]
    ran = run("-m", "experiments.gpu_check", *TOY_OPTIONS, *paths, "--only", *COMMANDED)
    assert ran.returncode == 0, ran.stdout + ran.stderr + "".join(p.read_text() for p in tmp_path.glob("saved/*/*.log"))
    assert "| ranks | passed |" in (tmp_path / "saved" / "gpu.md").read_text()
    [saved] = {path.parent for path in tmp_path.glob("saved/*/*.json")}
    assert all(has_passed(stored(saved, name)) for name in COMMANDED)
    assert written() == before, "a CPU's report is not a GPU's"
