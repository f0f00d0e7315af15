"""The launchers docker and swarm on a real engine."""

import json
from collections.abc import AsyncIterator
from functools import partial

import pytest

from experiments.docker_engine import docker
from services.reconfigurator.execution.launchers.container_spec import ALIAS, WorkerTemplate
from services.reconfigurator.execution.launchers.docker import DockerLauncher
from services.reconfigurator.execution.launchers.launcher import Launcher
from services.reconfigurator.execution.launchers.swarm import SwarmLauncher
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.errors import BadInput, RetryLater
from shared.messages.launch import InstanceSpec
from tests.support.waiting import reached, until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

CELL = NETWORK = "launchertest"
DRIVERS = {DockerLauncher: "bridge", SwarmLauncher: "overlay"}  # of the network
WITHIN_S = 60.0
MEMORY_BYTES = 1 << 28


def settings(image: str, **changes: object) -> ReconfiguratorSettings:
    return ReconfiguratorSettings(cell=CELL, worker_image=image, worker_memory_bytes=MEMORY_BYTES, stop_s=5, **changes)  # type: ignore[arg-type]


@pytest.fixture
def node(single_node_swarm: str) -> str:
    return single_node_swarm


@pytest.fixture(params=[DockerLauncher, SwarmLauncher])
async def launcher(request: pytest.FixtureRequest, idle_image: str, node: str) -> AsyncIterator[Launcher]:
    docker("network", "create", "--driver", DRIVERS[request.param], NETWORK)
    template_settings = settings(idle_image, worker_network=NETWORK)
    made = request.param(WorkerTemplate(template_settings, {"DILASERVE_MODEL": "m"}), [node])
    yield made
    for spec in await made.running():
        await made.stop(spec, 1)
    await made.close()
    await until(is_removed, WITHIN_S)


def containers(spec: InstanceSpec) -> list[str]:
    """The ids of the running containers, under either launcher."""
    name = f"{CELL}-{spec.name}"
    return docker("ps", "--quiet", "--no-trunc", "--filter", f"name={name}").split()


async def is_removed() -> bool:
    """Remove the network, which fails while a container uses it."""
    try:
        docker("network", "rm", NETWORK)
    except RuntimeError:
        return False
    return True


async def started(launcher: Launcher, *specs: InstanceSpec) -> None:
    for spec in specs:
        await launcher.start(spec)
        await reached(partial(containers, spec), WITHIN_S)


async def test_an_instance_has_its_place_and_few_rights_and_orders_may_be_repeated(
    launcher: Launcher, node: str
) -> None:
    spec = InstanceSpec(node=node, gpus=(0, 1))
    await started(launcher, spec)
    before = containers(spec)
    await launcher.start(spec)
    assert containers(spec) == before
    assert list(await launcher.running()) == [spec]

    environ = docker("inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", *before).split()
    place = {f"DILASERVE_INSTANCE={spec.name}", f"DILASERVE_NODE={node}", "DILASERVE_GPUS=0,1", "DILASERVE_TP=2"}
    assert place | {f"DILASERVE_CELL={CELL}", "DILASERVE_MODEL=m"} <= set(environ)
    rights = json.loads(docker("inspect", "--format", "{{json .HostConfig}}", *before))
    assert (rights["CapDrop"], rights["ReadonlyRootfs"], rights["Memory"]) == (["ALL"], True, MEMORY_BYTES)
    if isinstance(launcher, DockerLauncher):  # a Swarm's node sets it for all containers
        assert rights["SecurityOpt"] == ["no-new-privileges"]
    docker("exec", *before, "/touch", "/tmp/file")  # noqa: S108  (in the container)
    with pytest.raises(RuntimeError, match="Read-only file system"):
        docker("exec", *before, "/touch", "/file")

    for _ in range(2):
        await launcher.stop(spec, 1)
        assert not [*await launcher.running(), *containers(spec)]
    await started(launcher, spec)
    assert list(await launcher.running()) == [spec]


async def test_workers_have_one_common_name_and_a_killed_one_can_be_started_again(
    launcher: Launcher, node: str
) -> None:
    specs = [InstanceSpec(node=node, gpus=(0,)), InstanceSpec(node=node, gpus=(1,))]
    await started(launcher, *specs)

    async def both_answer() -> bool:
        try:
            lines = docker("exec", *containers(specs[0]), "/getent", "ahostsv4", ALIAS).splitlines()
        except RuntimeError:  # no such name yet
            return False
        return len({line.split()[0] for line in lines}) == 2

    await until(both_answer, WITHIN_S)
    killed = containers(specs[0])
    docker("kill", *killed)
    await launcher.start(specs[0])
    await reached(lambda: set(containers(specs[0])) - set(killed), WITHIN_S)
    assert set(await launcher.running()) == set(specs)


async def test_only_configured_nodes_that_the_engine_knows_are_available(idle_image: str, node: str) -> None:
    launcher = SwarmLauncher(WorkerTemplate(settings(idle_image), {}), [node, "gone"])
    assert list(await launcher.nodes()) == [node]
    await launcher.close()


async def test_a_missing_image_is_bad_input(node: str) -> None:
    launcher = DockerLauncher(WorkerTemplate(settings("dilaserve-test/none"), {}), [node])
    with pytest.raises(BadInput, match="no image"):
        await launcher.start(InstanceSpec(node=node, gpus=(0,)))
    await launcher.close()


async def test_a_launch_that_the_engine_refuses_leaves_no_container(idle_image: str, node: str) -> None:
    if "nvidia" in docker("info", "--format", "{{.Runtimes}}"):
        pytest.skip("this engine has GPUs")
    launcher = DockerLauncher(WorkerTemplate(settings(idle_image, worker_gpus=True), {}), [node])
    spec = InstanceSpec(node=node, gpus=(0, 1))
    with pytest.raises(RetryLater, match="gpu"):
        await launcher.start(spec)
    assert docker("ps", "--all", "--quiet", "--filter", f"name={CELL}-{spec.name}") == ""
    await launcher.close()


@pytest.mark.parametrize("kind", [DockerLauncher, SwarmLauncher])
async def test_an_unreachable_engine_is_a_reason_to_retry(
    kind: type[DockerLauncher] | type[SwarmLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    launcher = kind(WorkerTemplate(settings("any"), {}), ["a"])
    with pytest.raises(RetryLater):
        await launcher.nodes()
    await launcher.close()
