"""The compose files and their documented variables."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

COMPOSE = Path(__file__).parents[2] / "compose"
FILES = ("docker-compose.yml", "swarm.yml", "gpu.yml")
VARIABLE = re.compile(r"\$\{(\w+):?-([^}]*)\}")
NAMES = {"COMPOSE_PROJECT_NAME", "STACK"}  # of the whole system; documented in docs/deploy.md


@pytest.mark.parametrize("file", FILES)
def test_every_variable_is_listed_with_its_default(file: str) -> None:
    listed = dict(re.findall(r"^(\w+)=(.*)$", (COMPOSE / ".env.example").read_text(), re.MULTILINE))
    used = {name: default for name, default in VARIABLE.findall((COMPOSE / file).read_text()) if name not in NAMES}
    assert used
    assert used == {name: listed.get(name) for name in used}


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
def test_the_profiler_has_no_health_check(file: str) -> None:
    profiler = re.search(r"^  profiler:\n(?:    .*\n)+", (COMPOSE / file).read_text(), re.MULTILINE)
    assert profiler
    assert "    healthcheck:\n      disable: true" in profiler[0]


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
def test_the_gateway_can_require_api_keys(file: str) -> None:
    gateway = re.search(r"^  gateway:\n(?:    .*\n)+", (COMPOSE / file).read_text(), re.MULTILINE)
    assert gateway
    assert {"DILASERVE_AUTH", "DILASERVE_DATABASE_URL"} <= set(re.findall(r"^      (\w+):", gateway[0], re.MULTILINE))


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
def test_each_service_uses_its_own_user_of_the_bus_with_a_password_to_choose(file: str) -> None:
    text = (COMPOSE / file).read_text()
    urls = re.findall(r"^      DILASERVE_(?:WORKER_)?NATS_URL: nats://(\w+):\$\{(\w+):\?.+\}@nats:4222$", text, re.M)
    assert len(urls) == text.count("NATS_URL:")
    assert sorted(urls) == [
        (user, f"NATS_{user.upper()}_PASSWORD")
        for user in ("gateway", "predictor", "reconfigurator", "scheduler", "worker")
    ]
    listed = re.findall(r"^(NATS_\w+_PASSWORD)=$", (COMPOSE / ".env.example").read_text(), re.M)
    assert sorted(listed) == sorted(set(re.findall(r"\$\{(NATS_\w+_PASSWORD):\?", text)))


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
def test_two_schedulers_run_so_that_one_is_on_standby(file: str) -> None:
    scheduler = re.search(r"^  scheduler:\n(?:    .*\n)+", text := (COMPOSE / file).read_text(), re.MULTILINE)
    assert scheduler
    assert "      replicas: 2 " in scheduler[0]
    assert text.count("replicas:") == 1


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
def test_the_profile_is_measured_again_for_another_model_only(file: str, tmp_path: Path) -> None:
    profile, own = tmp_path / "profile.csv", tmp_path / "dilaserve"
    own.write_text(f"#!/bin/sh\necho measured >> {profile}\n")
    own.chmod(0o755)

    def start(model: str) -> int:
        """The number of measurements since the first start."""
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DILASERVE_MODEL": model}
        subprocess.run(_command(file, tmp_path), env=environ, check=True)
        return profile.read_text().count("measured")

    assert [start(model) for model in ("demo", "demo", "GSAI-ML/LLaDA-8B-Instruct", "demo")] == [1, 1, 2, 3]
    (tmp_path / "profile.csv.of").unlink()
    profile.write_text("a user's own")
    assert start("demo") == 0


def _command(file: str, cache: Path) -> list[str]:
    """The profiler's command with the variables' defaults, and another directory for the volume."""
    folded = re.search(
        r"^  profiler:\n(?:    .*\n)*?    command: >\n((?:      .*\n)+)", (COMPOSE / file).read_text(), re.M
    )
    assert folded
    text = VARIABLE.sub(r"\2", folded[1]).replace("$$", "$").replace("/var/cache/dilaserve", str(cache))
    return shlex.split(" ".join(text.split()))
