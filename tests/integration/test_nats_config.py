"""NATS takes its configurations as they are meant: it goes on without what it cannot read, and tells only its log."""

import subprocess
from pathlib import Path

import pytest

from dilaserve.stack.nats import find_server, nats_program

COMPOSE = Path(__file__).parents[2] / "compose/nats.conf"


def check(config: Path) -> str:
    """What the server has to say of the file; its check fails at what is only a warning, too."""
    command = [find_server(), "-t", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stderr


@pytest.mark.parametrize("sync_interval", ["2m", "500ms", "always"])
def test_the_embedded_server_reads_all_of_its_configuration(sync_interval: str, tmp_path: Path) -> None:
    directory = tmp_path / 'a "dätä" \\ directory'
    nats_program(directory, 4222, sync_interval)
    assert "is valid" in check(directory / "nats.conf")


def test_the_server_in_a_container_reads_all_of_its_configuration() -> None:
    assert "is valid" in check(COMPOSE)
