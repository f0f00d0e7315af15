"""Runs the commands of README.md and docs/ in order against one running stack.

They run in a folder that looks like the repository and holds the stack's data directory. A comment
`<!-- not run: REASON -->` above a block excludes it; tests/support/documented.py names the commands of other tests.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.up_options import DEMO_MODEL
from tests.support.documented import RUN, to_run
from tests.support.shell_blocks import ROOT, Block, blocks
from tests.support.stack import Stack, new_data_dir, running_stack

LIMIT_S = 60.0  # time limit per block
UNTRACKED = {".data", ".git", ".venv", ".site"}
DOCUMENTS = [path for path in RUN if any(map(to_run, blocks(path)))]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")]


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of the documents: a checkout, its programs on the PATH and a running stack."""

    stack: Stack
    directory: Path
    programs: Path

    def run(self, block: Block) -> subprocess.CompletedProcess[str]:
        """Run the block in one shell, which ends at the first failed command."""
        text = block.text.replace("127.0.0.1:8000", f"127.0.0.1:{self.stack.port}")
        command = ["bash", "-euo", "pipefail", "-c", text]
        if block.language == "python":
            command = [sys.executable, "-c", text, read_addresses(self.stack.data_dir).nats_url]
        environ = {
            **os.environ,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CURL_HOME": str(self.programs),
            "COLUMNS": "120",
        }
        return subprocess.run(
            command, cwd=self.directory, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A stack with one instance, which starts sooner than two."""
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, "--instances", "1x1") as running:
        yield running


@pytest.fixture
def reader(stack: Stack, tmp_path: Path) -> Reader:
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    checkout.mkdir()
    programs.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in UNTRACKED:
            (checkout / entry.name).symlink_to(entry)
    (checkout / ".data").symlink_to(stack.data_dir)
    for name, arguments in {"dilaserve": "-m dilaserve", "python": ""}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        program.chmod(0o755)
    (programs / ".curlrc").write_text("fail-with-body\n")  # an HTTP error is a failure
    return Reader(stack, checkout, programs)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_of_a_document_succeed(reader: Reader, path: Path) -> None:
    for block in filter(to_run, blocks(path)):
        ended = reader.run(block)
        assert ended.returncode == 0, f"{block.where}\n{block.text}\n{ended.stdout}\n{ended.stderr}"
