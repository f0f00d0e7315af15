"""The compose files and their documented variables."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are no package of the project

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FILES = ("docker-compose.yml", "swarm.yml", "gpu.yml")
VARIABLE = re.compile(r"\$\{(\w+):?-([^}]*)\}")
NAMES = {"COMPOSE_PROJECT_NAME", "STACK"}  # of the whole system; documented in docs/deploy.md
OF_THE_SCRIPT = {"CONFIG"}  # compose/swarm.sh computes it


@pytest.mark.parametrize("file", FILES)
def test_every_variable_is_listed_with_its_default(file: str) -> None:
    listed = dict(re.findall(r"^(\w+)=(.*)$", (COMPOSE / ".env.example").read_text(), re.MULTILINE))
    found = VARIABLE.findall((COMPOSE / file).read_text())
    used = {name: default for name, default in found if name not in NAMES | OF_THE_SCRIPT}
    assert used
    assert used == {name: listed.get(name) for name in used}


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
def test_each_service_uses_its_own_user_of_the_bus_with_a_password_to_choose(file: str) -> None:
    text = (COMPOSE / file).read_text()
    url = r"^      DILASERVE_(?:WORKER_|STATUS_)?NATS_URL: nats://(\w+):\$\{(\w+):\?.+\}@nats:4222(?: #.*)?$"
    urls = re.findall(url, text, re.M)
    assert len(urls) == text.count("NATS_URL:")
    assert sorted(urls) == [
        (user, f"NATS_{user.upper()}_PASSWORD")
        for user in ("gateway", "predictor", "reconfigurator", "scheduler", "status", "worker")
    ]
    listed = re.findall(r"^(NATS_\w+_PASSWORD)=$", (COMPOSE / ".env.example").read_text(), re.M)
    assert sorted(listed) == sorted(set(re.findall(r"\$\{(NATS_\w+_PASSWORD):\?", text)))


@pytest.mark.parametrize("file", ["docker-compose.yml", "swarm.yml"])
def test_the_gateway_watches_the_disk_of_nats(file: str) -> None:
    services = yaml.safe_load((COMPOSE / file).read_text())["services"]
    assert "nats:/data" in services["nats"]["volumes"]
    assert "store_dir: /data\n" in (COMPOSE / "nats.conf").read_text()
    directory = services["gateway"]["environment"]["DILASERVE_BUS_STORE_DIR"].replace("{{.Node.Hostname}}", "${NODE}")
    assert ("nats", directory) in _volumes(services["gateway"])


def test_in_a_swarm_the_gateway_watches_the_disk_of_the_server_on_its_own_node() -> None:
    services = yaml.safe_load((COMPOSE / "swarm-bus-cluster.yml").read_text())["services"]
    numbers = (2, 3)
    assert _volumes(services["gateway"]) == [(f"nats-{n}", f"/var/lib/nats/${{NODE_{n}}}") for n in numbers]
    assert all(f"nats-{n}:/data" in services[f"nats-{n}"]["volumes"] for n in numbers)


@pytest.mark.parametrize("file", [*FILES, "swarm.sh", ".env.example", "Dockerfile", "../docs/deploy.md"])
def test_the_tag_of_the_projects_images_is_its_version(file: str) -> None:
    pattern = r"\$\{TAG:-([^}]+)\}|^TAG=(.+)$|(?<!example/)dilaserve/[\w{},%]+:(\d[\w.]*)"
    found = re.findall(pattern, (COMPOSE / file).read_text(), re.MULTILINE)
    assert {"".join(groups) for groups in found} == {VERSION}


def test_images_are_built_under_the_tag_that_the_compose_files_use() -> None:
    dry = subprocess.run(["make", "-n", "images"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"--tag dilaserve/$service:{VERSION} " in dry.stdout


def test_two_schedulers_run_so_that_one_is_on_standby() -> None:
    scheduler = re.search(r"^  scheduler:\n(?:    .*\n)+", text := (COMPOSE / FILES[0]).read_text(), re.MULTILINE)
    assert scheduler
    assert "      replicas: 2 " in scheduler[0]
    assert text.count("replicas:") == 1


def test_a_swarm_has_schedulers_on_two_nodes_and_a_gateway_on_each() -> None:
    services = yaml.safe_load((COMPOSE / "swarm.yml").read_text())["services"]
    scheduler = services["scheduler"]["deploy"]
    assert (scheduler["replicas"], scheduler["placement"]["max_replicas_per_node"]) == ("${SCHEDULERS:-2}", 1)
    assert services["gateway"]["deploy"]["mode"] == "global"


@pytest.mark.parametrize("file", ["swarm.yml", "swarm-bus-cluster.yml", "swarm-profile.yml"])
def test_the_configs_of_a_swarm_have_another_name_when_their_contents_change(file: str) -> None:
    configs = yaml.safe_load((COMPOSE / file).read_text())["configs"]
    assert all(config["name"] == f"${{STACK:-dilaserve}}_{key}_${{CONFIG:-1}}" for key, config in configs.items())


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({}, "NODE is not set"),
        ({"NODE": "a"}, "NODES is not set"),
        ({"NODE": "a", "NODES": "b:4,c:4"}, "the Swarm needs one node with the name 'c'; it has a b"),
        ({"NODE": "a", "NODES": "b:4", "NODE_2": "d"}, "the Swarm needs one node with the name 'd'; it has a b"),
    ],
)
def test_a_deployment_names_what_it_lacks(variables: dict[str, str], error: str, tmp_path: Path) -> None:
    done, _ = _deploy(tmp_path, variables)
    assert done.returncode == 2
    assert error in done.stderr


@pytest.mark.parametrize(
    ("variables", "files", "resolves"),
    [
        ({}, ["swarm.yml"], "never"),
        ({"IMAGES": "registry.example/dilaserve"}, ["swarm.yml"], "changed"),
        ({"NODE_2": "a", "NODE_3": "b"}, ["swarm.yml", "swarm-bus-cluster.yml"], "never"),
        ({"PROFILE": "./nats.conf"}, ["swarm.yml", "swarm-profile.yml"], "never"),
    ],
)
def test_a_deployment_consists_of_the_files_that_its_variables_need(
    variables: dict[str, str], files: list[str], resolves: str, tmp_path: Path
) -> None:
    done, calls = _deploy(tmp_path, {"NODE": "a", "NODES": "b:4", **variables})
    assert done.returncode == 0, done.stderr
    deploy = calls[-1]
    assert re.findall(r"--compose-file (\S+)", deploy) == files
    assert f"--resolve-image {resolves}" in deploy


def test_the_profile_is_measured_again_for_another_model_only(tmp_path: Path) -> None:
    file = FILES[0]
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


def _volumes(service: dict[str, Any]) -> list[tuple[str, str]]:
    """The source and the target of each volume of a service."""
    return [(mount["source"], mount["target"]) for mount in service["volumes"] if mount["type"] == "volume"]


def _deploy(directory: Path, variables: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Deploy with these variables on a Swarm of the nodes a and b. Returns: the process, and its docker commands."""
    compose, calls, program = directory / "compose", directory / "calls", directory / "docker"
    shutil.copytree(COMPOSE, compose, ignore=shutil.ignore_patterns(".env"))
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {calls}\nprintf 'a\\nb\\n'\n")
    program.chmod(0o755)
    environ = {"PATH": f"{directory}:/usr/bin:/bin", **variables}
    done = subprocess.run([compose / "swarm.sh", "deploy"], env=environ, capture_output=True, text=True, check=False)
    return done, calls.read_text().splitlines() if calls.exists() else []


def _command(file: str, cache: Path) -> list[str]:
    """The profiler's command with the variables' defaults, and another directory for the volume."""
    folded = re.search(
        r"^  profiler:\n(?:    .*\n)*?    command: >\n((?:      .*\n)+)", (COMPOSE / file).read_text(), re.M
    )
    assert folded
    text = VARIABLE.sub(r"\2", folded[1]).replace("$$", "$").replace("/var/cache/dilaserve", str(cache))
    return shlex.split(" ".join(text.split()))
