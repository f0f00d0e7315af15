"""Worker processes started and stopped over the bus, by the launcher and a node's supervisor."""

from collections.abc import AsyncIterator

import pytest

from dilaserve.stack.node_agent import NodeAgent
from dilaserve.stack.process import Program
from dilaserve.stack.supervisor import Supervisor
from services.reconfigurator.execution.launchers.launcher import Launcher
from services.reconfigurator.execution.launchers.process import ProcessLauncher
from shared.bus.client import Bus
from shared.errors import BadInput, RetryLater
from shared.messages.launch import InstanceSpec

WAIT_S = 20.0
LARGE, LEFT, RIGHT = (InstanceSpec(node="local", gpus=gpus) for gpus in ((0, 1), (0,), (1,)))


def worker(spec: InstanceSpec) -> Program:
    return Program(spec.name, ("/bin/sleep", "600"))


@pytest.fixture
async def launcher(bus: Bus) -> AsyncIterator[Launcher]:
    supervisor = Supervisor()
    supervisor.start(worker(LARGE))
    await NodeAgent(supervisor, worker, {LARGE.name: LARGE}).serve(bus, "local")
    yield ProcessLauncher(bus, ["local", "away"])
    await supervisor.stop(["worker"], WAIT_S)


async def test_two_small_instances_replace_a_large_one_and_orders_may_be_repeated(launcher: Launcher) -> None:
    assert list(await launcher.nodes()) == ["local"]
    await launcher.start(LARGE)
    assert list(await launcher.running()) == [LARGE]
    with pytest.raises(BadInput, match="worker-local-0_1 runs on its slots"):
        await launcher.start(LEFT)
    for _ in range(2):
        await launcher.stop(LARGE, WAIT_S)
        assert list(await launcher.running()) == []
    await launcher.start(LEFT)
    await launcher.start(RIGHT)
    assert set(await launcher.running()) == {LEFT, RIGHT}


async def test_a_node_without_a_supervisor_is_unavailable(launcher: Launcher, bus: Bus) -> None:
    with pytest.raises(RetryLater, match="cannot reach the supervisor of node gone"):
        await launcher.start(InstanceSpec(node="gone", gpus=(0,)))
    with pytest.raises(RetryLater, match="no supervisor"):
        await ProcessLauncher(bus, ["gone"]).running()
