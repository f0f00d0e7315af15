"""The launchers docker and swarm on a real engine."""

from collections.abc import AsyncIterator
from functools import partial

import pytest

from experiments.docker_engine import docker
from services.reconfigurator.execution.launchers import Launcher
from services.reconfigurator.execution.launchers.containers import ALIAS, read_template
from services.reconfigurator.execution.launchers.docker import DockerLauncher
from services.reconfigurator.execution.launchers.swarm import SwarmLauncher
from services.reconfigurator.nodes import Node
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.errors import BadInput, RetryLater
from shared.messages.launch import InstanceSpec
from tests.support.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

CELL = NETWORK = "launchertest"
DRIVERS = {DockerLauncher: "bridge", SwarmLauncher: "overlay"}  # of the network
WITHIN_S = 60.0


def settings(image: str, **changes: object) -> ReconfiguratorSettings:
    return ReconfiguratorSettings(cell=CELL, worker_image=image, stop_s=5, **changes)  # type: ignore[arg-type]


@pytest.fixture
def node(single_node_swarm: str) -> str:
    return single_node_swarm


@pytest.fixture(params=[DockerLauncher, SwarmLauncher])
async def launcher(request: pytest.FixtureRequest, idle_image: str, node: str) -> AsyncIterator[Launcher]:
    docker("network", "create", "--driver", DRIVERS[request.param], NETWORK)
    asked = settings(idle_image, worker_network=NETWORK)
    made = request.param(read_template(asked, {"DILASERVE_MODEL": "m"}), [Node(name=node, gpus=2)])
    yield made
    for spec in await made.running():
        await made.stop(spec, 1)
    await made.close()
    await until(is_removed, WITHIN_S)


def containers(spec: InstanceSpec) -> list[str]:
    """Identifiers of the containers that run, under either launcher."""
    name = f"{CELL}-{spec.name}"
    return docker("ps", "--quiet", "--no-trunc", "--filter", f"name={name}").split()


async def is_removed() -> bool:
    """The network, once nothing is on it any more."""
    try:
        docker("network", "rm", NETWORK)
    except RuntimeError:
        return False
    return True


async def is_up(spec: InstanceSpec) -> bool:
    return bool(containers(spec))


async def test_what_is_started_runs_and_what_is_stopped_is_gone(launcher: Launcher, node: str) -> None:
    spec = InstanceSpec(node=node, gpus=(0, 1))
    await launcher.start(spec)
    await until(lambda: is_up(spec), WITHIN_S)
    assert list(await launcher.running()) == [spec]
    await launcher.stop(spec, 1)
    assert list(await launcher.running()) == []
    assert containers(spec) == []


async def test_every_order_may_be_repeated(launcher: Launcher, node: str) -> None:
    spec = InstanceSpec(node=node, gpus=(1,))
    await launcher.start(spec)
    await until(lambda: is_up(spec), WITHIN_S)
    before = containers(spec)
    await launcher.start(spec)
    assert containers(spec) == before
    await launcher.stop(spec, 1)
    await launcher.stop(spec, 1)
    await launcher.start(spec)
    await until(lambda: is_up(spec), WITHIN_S)
    assert list(await launcher.running()) == [spec]


async def test_a_worker_is_told_its_place(launcher: Launcher, node: str) -> None:
    spec = InstanceSpec(node=node, gpus=(0, 1))
    await launcher.start(spec)
    await until(lambda: is_up(spec), WITHIN_S)
    environ = docker("inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", *containers(spec)).split()
    told = {f"DILASERVE_INSTANCE={spec.name}", f"DILASERVE_NODE={node}", "DILASERVE_GPUS=0,1", "DILASERVE_TP=2"}
    assert told | {f"DILASERVE_CELL={CELL}", "DILASERVE_MODEL=m"} <= set(environ)


async def test_all_workers_answer_to_one_name(launcher: Launcher, node: str) -> None:
    specs = [InstanceSpec(node=node, gpus=(0,)), InstanceSpec(node=node, gpus=(1,))]
    for spec in specs:
        await launcher.start(spec)
        await until(partial(is_up, spec), WITHIN_S)

    async def both_answer() -> bool:
        try:
            lines = docker("exec", *containers(specs[0]), "/getent", "ahostsv4", ALIAS).splitlines()
        except RuntimeError:  # no such name yet
            return False
        return len({line.split()[0] for line in lines}) == 2

    await until(both_answer, WITHIN_S)


async def test_an_instance_whose_container_was_killed_can_be_started_again(launcher: Launcher, node: str) -> None:
    spec = InstanceSpec(node=node, gpus=(0,))
    await launcher.start(spec)
    await until(lambda: is_up(spec), WITHIN_S)
    killed = containers(spec)
    docker("kill", *killed)
    await launcher.start(spec)

    async def another_runs() -> bool:
        return bool(set(containers(spec)) - set(killed))

    await until(another_runs, WITHIN_S)
    assert list(await launcher.running()) == [spec]


async def test_of_the_configured_nodes_those_are_there_that_the_engine_knows(idle_image: str, node: str) -> None:
    launcher = SwarmLauncher(
        read_template(settings(idle_image), {}), [Node(name=node, gpus=2), Node(name="gone", gpus=2)]
    )
    assert list(await launcher.nodes()) == [node]
    await launcher.close()


async def test_an_image_that_is_not_there_is_bad_input(node: str) -> None:
    launcher = DockerLauncher(read_template(settings("dilaserve-test/none"), {}), [Node(name=node, gpus=1)])
    with pytest.raises(BadInput, match="no image"):
        await launcher.start(InstanceSpec(node=node, gpus=(0,)))
    await launcher.close()


async def test_a_launch_that_the_engine_refuses_leaves_nothing_behind(idle_image: str, node: str) -> None:
    if "nvidia" in docker("info", "--format", "{{.Runtimes}}"):
        pytest.skip("this engine has GPUs to give")
    launcher = DockerLauncher(read_template(settings(idle_image, worker_gpus=True), {}), [Node(name=node, gpus=2)])
    spec = InstanceSpec(node=node, gpus=(0, 1))
    with pytest.raises(RetryLater, match="gpu"):
        await launcher.start(spec)
    assert docker("ps", "--all", "--quiet", "--filter", f"name={CELL}-{spec.name}") == ""
    await launcher.close()


@pytest.mark.parametrize("kind", [DockerLauncher, SwarmLauncher])
async def test_an_engine_that_does_not_answer_is_to_be_asked_again(
    kind: type[DockerLauncher] | type[SwarmLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    launcher = kind(read_template(settings("any"), {}), [Node(name="a", gpus=1)])
    with pytest.raises(RetryLater):
        await launcher.nodes()
    await launcher.close()
