"""Containers of instances; a Swarm whose node is down, with a fake manager, as one engine cannot show this."""

from types import SimpleNamespace
from typing import Any

import pytest

from services.reconfigurator.execution.launchers.container_spec import WorkerTemplate, read_spec
from services.reconfigurator.execution.launchers.swarm import SwarmLauncher, unusable_nodes
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.messages.launch import InstanceSpec

SPEC = InstanceSpec(node="node.a", gpus=(2, 3))


def template(environ: dict[str, str] | None = None, **settings: object) -> WorkerTemplate:
    return WorkerTemplate(ReconfiguratorSettings(cell="east", **settings), environ or {})  # type: ignore[arg-type]


def test_its_labels_identify_an_instance_and_foreign_ones_none() -> None:
    assert read_spec(template().labels_of(SPEC)) == SPEC
    assert read_spec({"dilaserve.node": "a", "dilaserve.gpus": "x"}) is None
    assert read_spec({}) is None


def test_workers_get_their_settings_and_no_secret() -> None:
    environ = {"DILASERVE_DATABASE_URL": "secret", "DILASERVE_MODEL": "m", "OTEL_X": "y", "HOME": "/"}
    variables = template(environ, nats_url="nats://bus").environ_of(SPEC)
    assert (variables["DILASERVE_MODEL"], variables["OTEL_X"]) == ("m", "y")
    assert (variables["DILASERVE_NATS_URL"], variables["DILASERVE_CELL"]) == ("nats://bus", "east")
    assert not {"DILASERVE_DATABASE_URL", "HOME"} & set(variables)


def test_workers_get_the_credentials_of_their_own_user() -> None:
    own, workers = "nats://reconfigurator:secret@bus", "nats://worker:password@bus"
    environ = {"DILASERVE_NATS_URL": own, "DILASERVE_WORKER_NATS_URL": workers}
    variables = template(environ, nats_url=own, worker_nats_url=workers).environ_of(SPEC)
    assert variables["DILASERVE_NATS_URL"] == workers
    assert "secret" not in str(variables)


def test_a_worker_uses_gpus_only_if_it_gets_some() -> None:
    assert template(worker_gpus=True).environ_of(SPEC)["DILASERVE_DEVICE"] == "cuda"
    assert template(worker_gpus=False).environ_of(SPEC)["DILASERVE_DEVICE"] == "cpu"


def test_workers_belong_to_the_given_project_or_stack() -> None:
    compose = template(worker_project="p", launcher="docker").labels_of(SPEC)
    stack = template(worker_project="p", launcher="swarm").labels_of(SPEC)
    assert (compose["com.docker.compose.project"], stack["com.docker.stack.namespace"]) == ("p", "p")


def test_a_container_is_named_after_its_node_and_gpus() -> None:
    assert template().name(SPEC) == "east-worker-node_a-2_3"


DOWN = InstanceSpec(node="gpu-a", gpus=(0,))


class Service:
    """A service whose only task was running when its node went down."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.name = DOWN.name
        self.attrs: Any = {"Spec": {"Labels": labels, "Mode": {"Replicated": {"Replicas": 1}}}}
        self.removed = False

    def scale(self, replicas: int) -> None:
        self.attrs["Spec"]["Mode"]["Replicated"]["Replicas"] = replicas

    def tasks(self) -> list[Any]:
        return [{"NodeID": "1", "Status": {"State": "running"}}]

    def remove(self) -> None:
        self.removed = True


@pytest.fixture
def launcher() -> SwarmLauncher:
    template = WorkerTemplate(ReconfiguratorSettings(launcher="swarm"), {})
    return SwarmLauncher(template, ["gpu-a"])


@pytest.fixture(params=["1", "2"])
def service(launcher: SwarmLauncher, request: pytest.FixtureRequest) -> Service:
    """The parameter is the id of the node that is down. The task's node has the id 1, else it was removed."""
    service = Service(launcher._template.labels_of(DOWN))
    spec = {"Availability": "active"}
    node = SimpleNamespace(
        id=request.param, attrs={"Spec": spec, "Status": {"State": "down"}, "Description": {"Hostname": "gpu-a"}}
    )
    vars(launcher)["_engine"] = SimpleNamespace(
        nodes=SimpleNamespace(list=lambda: [node]),
        services=SimpleNamespace(get=lambda _name: service, list=lambda **_: [service]),
    )
    return service


async def test_an_instance_of_a_node_that_is_down_or_removed_can_be_stopped(
    launcher: SwarmLauncher, service: Service
) -> None:
    assert await launcher.nodes() == set()
    assert await launcher.running() == []
    await launcher.stop(DOWN, grace_s=0)
    assert service.removed


def node(name: str, state: str = "ready", availability: str = "active") -> dict[str, Any]:
    return {"Description": {"Hostname": name}, "Status": {"State": state}, "Spec": {"Availability": availability}}


def test_a_node_counts_if_it_is_ready_and_active_and_has_a_name_of_its_own() -> None:
    nodes = [node("good"), node("twin"), node("twin"), node("drained", availability="drain")]
    nodes += [node(name, state="down") for name in ("down", "not-configured")]
    assert unusable_nodes(["good", "down", "drained", "twin", "gone"], nodes) == {
        "down": "it is down, its availability active",
        "drained": "it is ready, its availability drain",
        "twin": "several nodes of the Swarm have this name",
        "gone": "the Swarm has no node of this name",
    }
