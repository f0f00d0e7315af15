"""The compose files and what is said of their variables."""

import re
from pathlib import Path

import pytest

COMPOSE = Path(__file__).parents[2] / "compose"
FILES = ("docker-compose.yml", "swarm.yml", "gpu.yml")
VARIABLE = re.compile(r"\$\{(\w+):?-([^}]*)\}")
NAMES = {"COMPOSE_PROJECT_NAME", "STACK"}  # of the whole; docs/deploy.md tells of them


@pytest.mark.parametrize("file", FILES)
def test_every_variable_is_listed_with_its_default(file: str) -> None:
    listed = dict(re.findall(r"^(\w+)=(.*)$", (COMPOSE / ".env.example").read_text(), re.MULTILINE))
    used = {name: default for name, default in VARIABLE.findall((COMPOSE / file).read_text()) if name not in NAMES}
    assert used
    assert used == {name: listed.get(name) for name in used}


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
def test_a_measurement_is_not_taken_for_a_service_that_hangs(file: str) -> None:
    profiler = re.search(r"^  profiler:\n(?:    .*\n)+", (COMPOSE / file).read_text(), re.MULTILINE)
    assert profiler
    assert "    healthcheck:\n      disable: true" in profiler[0]


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
def test_the_gateway_can_be_had_to_ask_for_keys(file: str) -> None:
    gateway = re.search(r"^  gateway:\n(?:    .*\n)+", (COMPOSE / file).read_text(), re.MULTILINE)
    assert gateway
    assert {"DILASERVE_AUTH", "DILASERVE_DATABASE_URL"} <= set(re.findall(r"^      (\w+):", gateway[0], re.MULTILINE))
