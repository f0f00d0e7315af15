"""The rights of the containers in the compose files: as few as each needs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are no package of the project

COMPOSE = Path(__file__).parents[2] / "compose"
FILES = ("docker-compose.yml", "swarm.yml")
SOCKET = "/var/run/docker.sock"


@pytest.fixture(params=FILES)
def system(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The parsed file, with `services`, `networks` and `file`, its name."""
    return {**yaml.safe_load((COMPOSE / request.param).read_text()), "file": request.param}


def test_containers_have_no_capabilities_and_a_read_only_root(system: dict[str, Any]) -> None:
    for name, service in system["services"].items():
        assert service.get("cap_drop") == ["ALL"], name
        assert service.get("read_only") is True, name
        assert "cap_add" not in service, name
        assert "privileged" not in service, name


def test_containers_can_write_temporary_files(system: dict[str, Any]) -> None:
    for name, service in system["services"].items():
        if system["file"] == "swarm.yml":  # a stack ignores `tmpfs`
            assert {"type": "tmpfs", "target": "/tmp"} in service["volumes"], name  # noqa: S108  (in the container)
            assert "tmpfs" not in service, name
        else:
            assert "/tmp" in service["tmpfs"], name  # noqa: S108


def test_containers_of_one_machine_get_no_new_privileges(system: dict[str, Any]) -> None:
    for name, service in system["services"].items():  # a stack has no such option
        assert system["file"] == "swarm.yml" or service.get("security_opt") == ["no-new-privileges:true"], name


def test_every_container_has_a_memory_limit(system: dict[str, Any]) -> None:
    for name, service in system["services"].items():
        stack = service.get("deploy", {}).get("resources", {}).get("limits", {}).get("memory")
        assert service.get("mem_limit") if system["file"] == "docker-compose.yml" else stack, name


def test_the_bodies_of_the_gateway_need_less_than_its_memory_limit(system: dict[str, Any]) -> None:
    gateway = system["services"]["gateway"]
    limit = gateway.get("mem_limit") or gateway["deploy"]["resources"]["limits"]["memory"]
    assert _default(limit) == "2g"
    assert int(_default(gateway["environment"]["DILASERVE_MAX_BODY_MEMORY_BYTES"])) < 1 << 30


def test_workers_have_a_memory_limit(system: dict[str, Any]) -> None:
    environment = system["services"]["reconfigurator"]["environment"]
    assert int(_default(environment["DILASERVE_WORKER_MEMORY_BYTES"])) > 0


def test_only_the_proxy_has_the_engines_socket(system: dict[str, Any]) -> None:
    services = system["services"]
    assert [name for name, one in services.items() if SOCKET in str(one.get("volumes"))] == ["engine"]
    on_its_network = {name for name, one in services.items() if "engine" in one.get("networks", [])}
    assert on_its_network == {"engine", "reconfigurator"}
    assert services["engine"]["networks"] == ["engine"]
    assert system["networks"]["engine"]["internal"] is True
    assert services["reconfigurator"]["environment"]["DOCKER_HOST"] == "tcp://engine:2375"
    assert "ports" not in services["engine"]


def test_the_proxy_allows_the_calls_of_the_launcher_in_use(system: dict[str, Any]) -> None:
    services = system["services"]
    launcher = services["reconfigurator"]["environment"]["DILASERVE_LAUNCHER"]
    assert services["engine"]["environment"]["ENGINE"] == launcher


def test_only_the_proxy_is_set_to_run_as_root(system: dict[str, Any]) -> None:
    users = {name: _default(str(one["user"])) for name, one in system["services"].items() if "user" in one}
    assert users == {"engine": "0:0", "postgres": "postgres"}
    assert "\nUSER dilaserve\n" in (COMPOSE / "Dockerfile").read_text()


def test_kernels_are_compiled_into_a_volume_as_no_code_runs_from_tmp(system: dict[str, Any]) -> None:
    volumes = system["services"]["reconfigurator"]["environment"]["DILASERVE_WORKER_VOLUMES"]
    target = volumes.rpartition(":")[2]
    assert f"TORCHINDUCTOR_CACHE_DIR={target}/" in (COMPOSE / "Dockerfile").read_text()


def test_clients_need_a_key_unless_a_variable_is_false(system: dict[str, Any]) -> None:
    environment = system["services"]["gateway"]["environment"]
    assert _default(environment["DILASERVE_AUTH"]) == "true"
    assert "DILASERVE_DATABASE_URL" in environment  # which has the keys


def test_ports_of_one_machine_are_on_the_loopback_address() -> None:
    services = yaml.safe_load((COMPOSE / "docker-compose.yml").read_text())["services"]
    ports = {name: one["ports"] for name, one in services.items() if "ports" in one}
    assert set(ports) == {"gateway", "prometheus", "grafana"}
    assert all(_defaults(port).startswith("127.0.0.1:") for found in ports.values() for port in found)


def test_no_password_has_a_default(system: dict[str, Any]) -> None:
    text = (COMPOSE / system["file"]).read_text()
    assert set(re.findall(r"\$\{\w+_PASSWORD(..)", text)) == {":?"}
    listed = re.findall(r"^\w+_PASSWORD=.*$", (COMPOSE / ".env.example").read_text(), re.MULTILINE)
    assert {"POSTGRES_PASSWORD=", "GRAFANA_PASSWORD="} < set(listed)
    assert all(line.endswith("=") for line in listed)


def test_the_gateway_reads_the_volume_of_the_bus_only(system: dict[str, Any]) -> None:
    mounts = system["services"]["gateway"]["volumes"]
    assert all(mount["type"] == "tmpfs" or mount["read_only"] is True for mount in mounts)


def test_images_of_others_have_a_full_version(system: dict[str, Any]) -> None:
    images = [_default(one["image"]) for one in system["services"].values()]
    build = re.findall(r"ARG \w+_IMAGE=(\S+)", (COMPOSE / "Dockerfile").read_text())
    of_others = [image for image in images if "{IMAGES" not in image] + build
    assert of_others
    assert [image for image in of_others if not re.search(r":v?\d+\.\d+(\.\d+)?", image)] == []


def _default(value: str) -> str:
    """The value of `${NAME:-default}` without the variable; others as they are."""
    found = re.fullmatch(r"\$\{\w+:-([^}]*)\}", value)
    return found[1] if found else value


def _defaults(value: str) -> str:
    """The text with the default of each variable in it."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
