"""A Swarm with a node that is down: a fake manager, because one engine cannot show this."""

from types import SimpleNamespace
from typing import Any

import pytest

from services.reconfigurator.execution.launchers.container_spec import read_template
from services.reconfigurator.execution.launchers.swarm import SwarmLauncher
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
    assert await launcher.running() == [SPEC]
    await launcher.stop(SPEC, grace_s=0)
    assert service.removed
    assert await launcher.running() == []
