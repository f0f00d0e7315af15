"""NATS accepts its configurations. It would ignore invalid entries with a log line only."""

import stat
import subprocess
from pathlib import Path

import pytest

from dilaserve.stack.bus_users import new_passwords
from dilaserve.stack.nats import find_server, nats_program

COMPOSE = Path(__file__).parents[2] / "compose/nats.conf"


def check(config: Path) -> str:
    """The server's output of a configuration check, which also fails on warnings."""
    command = [find_server(), "-t", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stderr


@pytest.mark.parametrize("sync_interval", ["2m", "500ms", "always"])
def test_the_embedded_server_accepts_its_configuration_which_only_its_owner_reads(
    sync_interval: str, tmp_path: Path
) -> None:
    directory = tmp_path / 'a "dätä" \\ directory'
    directory.mkdir()
    config = directory / "nats.conf"
    config.write_text("of an earlier version")
    config.chmod(0o644)
    nats_program(directory, 4222, sync_interval, "cell0", new_passwords())
    assert "is valid" in check(config)
    assert stat.S_IMODE(config.stat().st_mode) == 0o600


def test_the_container_server_accepts_its_configuration() -> None:
    assert "is valid" in check(COMPOSE)
