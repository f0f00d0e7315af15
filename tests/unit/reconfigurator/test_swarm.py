"""A Swarm with a node that is down: a fake manager, because one engine cannot show this."""

from types import SimpleNamespace
from typing import Any

import pytest

from services.reconfigurator.execution.launchers.container_spec import read_template
from services.reconfigurator.execution.launchers.swarm import SwarmLauncher, unusable_nodes
from services.reconfigurator.nodes import Node
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.messages.launch import InstanceSpec

SPEC = InstanceSpec(node="gpu-a", gpus=(0,))


class Service:
    """A service whose only task was running when its node went down."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.name = SPEC.name
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
    template = read_template(ReconfiguratorSettings(launcher="swarm"), {})
    return SwarmLauncher(template, [Node(name="gpu-a", gpus=1)])


@pytest.fixture(params=["1", "2"])
def service(launcher: SwarmLauncher, request: pytest.FixtureRequest) -> Service:
    """The parameter is the id of the node that is down. The task's node has the id 1, else it was removed."""
    service = Service(launcher._template.labels_of(SPEC))
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
    await launcher.stop(SPEC, grace_s=0)
    assert service.removed


def node(name: str, state: str = "ready", availability: str = "active") -> dict[str, Any]:
    return {"Description": {"Hostname": name}, "Status": {"State": state}, "Spec": {"Availability": availability}}


def test_a_node_counts_if_it_is_ready_and_active_and_has_a_name_of_its_own() -> None:
    nodes = [
        node("good"),
        node("not-configured", state="down"),
        node("down", state="down"),
        node("drained", availability="drain"),
        node("twin"),
        node("twin"),
    ]
    assert unusable_nodes(["good", "down", "drained", "twin", "gone"], nodes) == {
        "down": "it is down, its availability active",
        "drained": "it is ready, its availability drain",
        "twin": "several nodes of the Swarm have this name",
        "gone": "the Swarm has no node of this name",
    }
