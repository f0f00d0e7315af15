"""The number of GPUs, by a program in the place of nvidia-smi."""

from pathlib import Path

import pytest

from shared.gpus import num_gpus

TWO = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b)\n"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its path; the test writes it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "nvidia-smi"


def write(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_without_a_driver_or_with_one_that_fails_there_is_no_gpu(nvidia_smi: Path) -> None:
    assert num_gpus() == 0
    write(nvidia_smi, "echo 'NVIDIA-SMI has failed'; exit 9")
    assert num_gpus() == 0


@pytest.mark.parametrize(("visible", "wanted"), [(None, 2), ("1", 1), ("0,1", 2), ("", 0), ("-1", 0), ("0,1,2,3", 2)])
def test_the_environment_limits_the_gpus(
    visible: str | None, wanted: int, nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(nvidia_smi, f"test \"$*\" = --list-gpus && printf '{TWO}'".replace("\n", "\\n"))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert num_gpus() == wanted
