"""A checkpoint that is large beside a shard: its loading, and the command that measures it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from experiments.large_checkpoint import TOY, TOY_SHARD_BYTES, write_checkpoint
from services.worker.model.decoder import Shard
from services.worker.model.weights import load, weight_targets
from tests.support.waiting import reached

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0
COMMAND = [sys.executable, "-m", "experiments.large_checkpoint", "--toy"]
HANGING = """
import signal, sys, time, typer
from unittest.mock import patch
from experiments import large_checkpoint as command

def save_and_hang(tensors, file, save=command.save_file, **options):
    save(tensors, file, **options)
    if str(file).startswith(sys.argv[-1]):
        time.sleep(600)

signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background of a shell, without it
with patch.object(command, "save_file", save_and_hang):
    typer.run(command.main)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(TOY, directory, TOY_SHARD_BYTES)
    return directory


def test_every_shard_is_loaded_to_its_place(checkpoint: Path) -> None:
    files = sorted(checkpoint.glob("*.safetensors"))
    assert len(files) > 5
    decoder = load(checkpoint, torch.bfloat16, "cpu")
    targets = weight_targets(decoder)
    written = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert written.keys() == targets.keys()
    for name, tensor in written.items():
        loaded = torch.empty_like(tensor)
        for target in targets[name]:
            target.save(loaded)
        assert torch.equal(loaded, tensor)


def peak_above_the_decoder(checkpoint: Path, shard: Shard) -> int:
    """The most bytes that loading needs beyond the decoder, in a process of its own."""
    program = (
        "import torch; from pathlib import Path; from experiments.large_checkpoint import memory_bytes, measured\n"
        "from services.worker.model.decoder import Shard; from services.worker.model.weights import load\n"
        f"before = memory_bytes('VmRSS')\n"
        f"decoder, cost = measured(lambda: load(Path({str(checkpoint)!r}), torch.bfloat16, 'cpu', {shard!r}))\n"
        "print(cost.peak_bytes - before - sum(p.nbytes for p in decoder.parameters()))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    return int(run.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("shard", [Shard(), Shard(1, 4)])
def test_loading_needs_about_one_file_more_than_the_decoder(checkpoint: Path, shard: Shard) -> None:
    assert peak_above_the_decoder(checkpoint, shard) < 3 * TOY_SHARD_BYTES


@pytest.mark.slow
def test_the_command_measures_each_stage_and_leaves_no_files(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    work = tmp_path / "work"
    work.mkdir()
    run = subprocess.run(
        [*COMMAND, "--folder", str(work), "--out", str(out)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = out.read_text()
    assert [line.split("|")[1].split()[0] for line in report.splitlines() if line.startswith("|")] == [
        "stage", "---", "write", "load", "decode"
    ]  # fmt: skip
    assert "MISSED" not in report
    assert not list(work.iterdir())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with its files below `tmp_path`. It hangs after its first file."""
    run = subprocess.Popen(
        [sys.executable, "-c", HANGING, "--toy", "--folder", str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    yield run
    run.kill()
    run.wait()


@pytest.mark.slow
async def test_the_folder_is_removed_after_ctrl_c(running: subprocess.Popen[bytes], tmp_path: Path) -> None:
    await reached(lambda: any(tmp_path.glob("*/*.safetensors")))
    running.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(running.wait, LIMIT_S) != 0
    await reached(lambda: not any(tmp_path.glob("*")))
