"""NATS accepts its configurations. It would ignore invalid entries with a log line only."""

import re
import shlex
import stat
import subprocess
from pathlib import Path

import nats
import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are no package of the project

from dilaserve.cli import run
from dilaserve.stack.bus_users import new_passwords, server_users
from dilaserve.stack.nats import find_server, nats_program
from shared.bus.client import Bus
from shared.bus.users import BusUser
from tests.support.nats import started_server
from tests.support.refusal import refusal

COMPOSE = Path(__file__).parents[2] / "compose"


def check(config: Path) -> str:
    """The server's output of a configuration check, which also fails on warnings."""
    command = [find_server(), "-t", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stderr


def write_config(command: str, config: Path) -> None:
    """Run a container's command with the files of the repository, without the server at its end."""
    text = " ".join(command.split()).replace("$$", "$").replace("exec nats-server", "true")
    files = {"nats-server.conf": "nats.conf", "users.conf": "users.conf", "cluster.conf": "nats-cluster.conf"}
    paths = {f"/etc/nats/{name}": COMPOSE / file for name, file in files.items()}
    for path, here in {**paths, "/tmp/nats.conf": config}.items():  # noqa: S108  (of the container)
        text = text.replace(path, str(here))
    subprocess.run(shlex.split(text), check=True)


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


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
async def test_the_container_server_starts_with_the_users_of_its_cell(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = re.search(r"^  nats:\n(?:    .*\n)+", (COMPOSE / file).read_text(), re.MULTILINE)
    assert declared
    for name, quotes in re.findall(r"^      (NATS_\w+): '(\"?)\$", declared[0], re.MULTILINE):
        monkeypatch.setenv(name, f"{quotes}123{quotes}")  # NATS would read a number
    monkeypatch.setenv("CELL", "east")
    command = re.search(r"    command: >\n((?:      .*\n)+)", declared[0])
    assert command
    config = tmp_path / "container.conf"
    write_config(command[1], config)
    assert "is valid" in check(config)

    with started_server(tmp_path, more=config.read_text()[len((COMPOSE / "nats.conf").read_text()) :]) as server:
        bus = await Bus.connect(server.url.replace("//", "//scheduler:123@"), "east", name="scheduler")
        await bus.set_up()
        await bus.close()
        for user in set(BusUser) - {BusUser.SUPERVISOR}:
            client = await nats.connect(server.url.replace("//", f"//{user}:123@"))
            await client.close()


@pytest.mark.parametrize("file", ["bus-cluster.yml", "swarm-bus-cluster.yml"])
def test_each_container_server_of_a_cluster_accepts_its_configuration(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = yaml.safe_load((COMPOSE / file).read_text())["services"]
    for user in BusUser:
        monkeypatch.setenv(f"NATS_{user.upper()}_PASSWORD", '"123"')
    monkeypatch.setenv("CELL", "east")
    monkeypatch.setenv("NATS_ROUTE_PASSWORD", "456")
    for name in ("nats", "nats-2", "nats-3"):
        monkeypatch.setenv("SERVER", services[name]["environment"]["SERVER"])
        config = tmp_path / f"{name}.conf"
        write_config(services[name]["command"], config)
        assert "is valid" in check(config)
        assert f"\nserver_name: {name}\n" in config.read_text()
        for host in ("nats", "nats-2", "nats-3"):
            assert f'"nats://route:456@{host}:6222"' in config.read_text()


@pytest.mark.parametrize("file", ["bus-cluster.yml", "swarm-bus-cluster.yml"])
def test_each_service_knows_every_server_of_a_cluster_under_its_own_user(file: str) -> None:
    services = yaml.safe_load((COMPOSE / file).read_text())["services"]
    urls = {
        name.removeprefix("DILASERVE_").removesuffix("NATS_URL").rstrip("_").lower() or service: url
        for service, content in services.items()
        for name, url in content["environment"].items()
        if name.endswith("NATS_URL")
    }
    assert set(urls) == {"gateway", "scheduler", "predictor", "reconfigurator", "status", "worker"}
    for user, url in urls.items():
        found = re.findall(rf"nats://{user}:\$\{{NATS_{user.upper()}_PASSWORD[^}}]*\}}@(nats[-\d]*):4222", url)
        assert found == ["nats", "nats-2", "nats-3"]
    assert services["scheduler"]["environment"]["DILASERVE_STREAM_REPLICAS"] == 3


def test_the_command_prints_the_users_of_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bus-users", "--cell", "east"]) == 0
    printed = capsys.readouterr().out
    assert printed == server_users("east")
    assert "dilaserve.east.requests" in printed
    assert "$NATS_GATEWAY_PASSWORD" in printed
    assert "user: alice" not in printed
    assert run(["bus-users", "--cell", "east", "--producers", "alice,bob"]) == 0
    printed = capsys.readouterr().out
    assert "dilaserve.east.requests.alice" in printed
    assert "$NATS_BOB_PASSWORD" in printed
    assert "gateway is a user of the bus already" in refusal(capsys, "bus-users", "--producers", "alice,gateway")
    assert "--cell a.b" in refusal(capsys, "bus-users", "--cell", "a.b")
