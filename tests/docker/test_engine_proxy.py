"""The proxy before the engine's socket: what it passes on, on a real engine."""

import http.client
import os
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from docker import DockerClient

from experiments.container_cluster import BASES, COMPOSE
from experiments.docker_engine import docker
from services.reconfigurator.execution.launchers.container_spec import WorkerTemplate
from services.reconfigurator.execution.launchers.docker import DockerLauncher
from services.reconfigurator.execution.launchers.launcher import Launcher
from services.reconfigurator.execution.launchers.swarm import SwarmLauncher
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.messages.launch import InstanceSpec
from tests.support.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

NAME = "dilaserve-test-proxy"
NETWORK = "proxytest_cell"  # the proxy accepts networks named *_cell and volumes named *_cache
WITHIN_S = 60.0
PROXY_BUFFER, PROXY_RESERVE = 131_072, 1024  # bytes: `tune.bufsize` of the proxy, and its part for changed headers
DRIVERS = {"docker": "bridge", "swarm": "overlay"}
LAUNCHERS: dict[str, type[DockerLauncher] | type[SwarmLauncher]] = {"docker": DockerLauncher, "swarm": SwarmLauncher}


class Proxy:
    """A running proxy."""

    def __init__(self, host: str, kind: str) -> None:
        self.host, self.kind = host, kind

    def call(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
        """Returns: HTTP status and reply."""
        connection = http.client.HTTPConnection(self.host, 2375, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()


def is_refused(reply: tuple[int, str]) -> bool:
    """Whether the proxy refused the call, not the engine."""
    return reply[0] == 403 and reply[1].startswith("the proxy before the engine refuses")


def proxy_image() -> str:
    for image in (os.environ.get("ENGINE_PROXY_IMAGE", ""), BASES["ENGINE_PROXY_IMAGE"], "dilaserve-base/haproxy"):
        with suppress(RuntimeError):
            docker("image", "inspect", image or "-")
            return image
    pytest.skip("no image of the proxy: pull it, or run compose/stand-ins.sh")


@pytest.fixture(params=sorted(LAUNCHERS))
async def proxy(request: pytest.FixtureRequest, single_node_swarm: str) -> AsyncIterator[Proxy]:
    image = proxy_image()
    mounts = [
        f"--volume={COMPOSE}/engine-proxy.cfg:/engine-proxy.cfg:ro",
        "--volume=/var/run/docker.sock:/var/run/docker.sock:ro",
    ]
    rights = ["--user=0:0", "--cap-drop=ALL", "--read-only", "--security-opt=no-new-privileges"]
    options = ["--name", NAME, "--env", f"ENGINE={request.param}", *mounts, *rights]
    docker("run", "--detach", *options, image, "haproxy", "-db", "-f", "/engine-proxy.cfg")
    running = Proxy(docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", NAME).strip(), request.param)

    async def answers() -> bool:
        with suppress(OSError):
            return running.call("GET", "/version")[0] == 200
        return False

    await until(answers, WITHIN_S)
    yield running
    docker("rm", "--force", NAME)


@pytest.fixture
async def launcher(proxy: Proxy, idle_image: str, single_node_swarm: str) -> AsyncIterator[Launcher]:
    """The launcher that the proxy is for, connected to it."""
    docker("network", "create", "--driver", DRIVERS[proxy.kind], NETWORK)
    settings = ReconfiguratorSettings(
        cell="proxytest",
        launcher=proxy.kind,  # type: ignore[arg-type]
        stop_s=5,
        worker_image=idle_image,
        worker_memory_bytes=1 << 28,
        worker_network=NETWORK,
        worker_project="proxytest",
        worker_volumes=("proxytest_cache:/var/cache/dilaserve",),
    )
    made = LAUNCHERS[proxy.kind](WorkerTemplate(settings, {"DILASERVE_MODEL": "m"}), [single_node_swarm])
    vars(made)["_engine"] = DockerClient(base_url=f"tcp://{proxy.host}:2375", timeout=30)
    yield made
    await made.close()

    async def is_removed() -> bool:
        try:
            docker("network", "rm", NETWORK)
            docker("volume", "rm", "--force", "proxytest_cache")
        except RuntimeError:  # in use
            return False
        return True

    await until(is_removed, WITHIN_S)


async def test_a_launcher_starts_and_stops_workers_through_the_proxy(
    launcher: Launcher, single_node_swarm: str
) -> None:
    spec = InstanceSpec(node=single_node_swarm, gpus=(0, 1))
    assert list(await launcher.nodes()) == [single_node_swarm]
    await launcher.start(spec)
    assert list(await launcher.running()) == [spec]
    await launcher.stop(spec, 1)
    assert list(await launcher.running()) == []


CONTAINER = (
    '{"Image": "dilaserve-test/none", "User": null, "Env": ["A=1"], "Labels": {"dilaserve.cell": "a"}, "HostConfig": '
    '{"NetworkMode": "a_cell", "ReadonlyRootfs": true, "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"], '
    '"Binds": ["a_cache:/cache"]}}'
)
SERVICE = (
    '{"Name": "dilaserve-test-none", "TaskTemplate": {"ContainerSpec": {"Image": "dilaserve-test/none", '
    '"ReadOnly": true, "Mounts": [{"Target": "/cache", "Source": "a_cache", "Type": "volume"}], '
    '"CapabilityDrop": ["ALL"]}, '
    '"Networks": [{"Target": "missing_cell"}]}, "Mode": {"replicated": {"Replicas": 1}}}'
)
BODIES = {"docker": ("/v1.41/containers/create", CONTAINER), "swarm": ("/v1.41/services/create", SERVICE)}
MORE_RIGHTS = {  # each a text of the body and its replacement
    "docker": [
        ('"HostConfig": {', '"HostConfig": {"Privileged": true, '),
        ('"HostConfig": {', '"HostConfig": {"privileged": true, '),
        ('"HostConfig": {', '"HostConfig": {"\\u0050rivileged": true, '),
        ('"HostConfig": {', '"HostConfig": {"Mounts": [{"Type": "bind", "Source": "/", "Target": "/host"}], '),
        ('"HostConfig": {', '"HostConfig": {"PidMode": "host", '),
        ('"HostConfig": {', '"HostConfig": {"CapAdd": ["SYS_ADMIN"], '),
        ('"HostConfig": {', '"HostConfig": {"Devices": [], '),
        ('"Binds": ["a_cache:/cache"]', '"Binds": ["/:/host"]'),
        ('"Binds": ["a_cache:/cache"]', '"Binds": ["a_cache:/cache", "/:/host"]'),
        ('"Binds": ["a_cache:/cache"]', '"Binds": ["a_cache:/cache"], "Binds": ["/:/host"]'),
        ('"Binds": ["a_cache:/cache"]', '"Binds": ["a_postgres:/cache"]'),
        ('"CapDrop": ["ALL"], ', ""),
        ('"CapDrop": ["ALL"]', '"CapDrop": ["ALL"], "CapDrop": []'),
        ('"SecurityOpt": ["no-new-privileges"]', '"SecurityOpt": ["no-new-privileges", "seccomp=unconfined"]'),
        ('"ReadonlyRootfs": true', '"ReadonlyRootfs": false'),
        ('"NetworkMode": "a_cell"', '"NetworkMode": "host"'),
        ('"NetworkMode": "a_cell"', '"NetworkMode": "container:a"'),
        ('"User": null', '"User": "0"'),
        ('"]}}', '"]}, "HostConfig": null}'),
    ],
    "swarm": [
        ('"Type": "volume"', '"Type": "bind"'),
        ('"Source": "a_cache", "Type": "volume"', '"Source": "/"'),
        ('"Source": "a_cache"', '"Source": "a_postgres"'),
        ('"Source": "a_cache"', '"Source": "a_cache", "VolumeOptions": {"DriverConfig": {}}'),
        ('"CapabilityDrop": ["ALL"]', '"CapabilityDrop": ["ALL"], "CapabilityAdd": ["CAP_SYS_ADMIN"]'),
        ('"CapabilityDrop": ["ALL"]', '"CapabilityDrop": []'),
        ('"CapabilityDrop": ["ALL"]', '"capabilitydrop": ["ALL"]'),
        ('"Target": "missing_cell"', '"Target": "host"'),
        ('"TaskTemplate": {', '"TaskTemplate": {"Runtime": "plugin", '),
        ('"ContainerSpec": {', '"ContainerSpec": {"Secrets": [], '),
    ],
}
NO_LAUNCHER_CALLS = [
    ("GET", "/v1.41/info"),
    ("GET", "/v1.41/images/json"),
    ("POST", "/v1.41/images/create?fromImage=alpine"),
    ("POST", "/v1.41/build"),
    ("GET", "/v1.41/containers/a/logs?stdout=true"),
    ("GET", "/v1.41/containers/a/archive?path=/"),
    ("POST", "/v1.41/containers/a/exec"),
    ("POST", "/v1.41/containers/a/update"),
    ("POST", "/v1.41/containers/prune"),
    ("GET", "/v1.41/containers/../images/json"),
    ("GET", "/v1.41/containers/a%2f..%2f..%2fimages/json"),
    ("POST", "/containers/create"),
    ("POST", "/v1.23/containers/create"),
    ("DELETE", "/v1.41/volumes/a"),
    ("GET", "/v1.41/volumes"),
    ("GET", "/v1.41/secrets"),
    ("POST", "/v1.41/swarm/leave"),
    ("POST", "/v1.41/nodes/a/update"),
]


def test_calls_that_no_launcher_makes_are_refused(proxy: Proxy) -> None:
    assert [call for call in NO_LAUNCHER_CALLS if not is_refused(proxy.call(*call))] == []


def test_each_engine_kind_allows_its_own_calls_only(proxy: Proxy) -> None:
    containers, services = (proxy.call("GET", f"/v1.41/{path}") for path in ("containers/json", "services"))
    assert is_refused(services) == (proxy.kind == "docker")
    assert is_refused(containers) == (proxy.kind == "swarm")


def test_a_container_with_more_rights_than_a_worker_is_refused(proxy: Proxy) -> None:
    path, body = BODIES[proxy.kind]
    assert "not found" in proxy.call("POST", path, body)[1].lower().replace(
        "no such", "not found"
    )  # the engine's answer
    changed = [body.replace(*change) for change in MORE_RIGHTS[proxy.kind]]
    assert body not in changed
    assert [one for one in changed if not is_refused(proxy.call("POST", path, one))] == []


def test_a_body_of_unknown_length_is_refused(proxy: Proxy) -> None:
    path, body = BODIES[proxy.kind]
    connection = http.client.HTTPConnection(proxy.host, 2375, timeout=30)
    connection.request("POST", path, iter([body.encode()]), encode_chunked=True)
    assert connection.getresponse().status == 403
    connection.close()


def test_a_body_larger_than_the_proxy_reads_is_refused(proxy: Proxy) -> None:
    path, body = BODIES[proxy.kind]
    padded = body.replace('"Image"', " " * 200_000 + '"Image"')
    # It replies when its buffer is full: a client that sent the rest could lose the reply with the connection.
    sent, whole = padded[: PROXY_BUFFER - PROXY_RESERVE], {"Content-Length": str(len(padded))}
    assert is_refused(proxy.call("POST", path, sent, **whole))


@pytest.mark.parametrize("proxy", ["docker"], indirect=True)
def test_a_start_cannot_change_a_container(proxy: Proxy) -> None:
    assert proxy.call("POST", "/v1.41/containers/none/start")[0] == 404
    assert is_refused(proxy.call("POST", "/v1.41/containers/none/start", '{"Privileged": true}'))


@pytest.mark.parametrize("proxy", ["swarm"], indirect=True)
def test_an_update_can_only_stop_a_service(proxy: Proxy) -> None:
    path, spec = "/v1.41/services/none/update?version=1", SERVICE
    stopped = spec.replace('"Replicas": 1', '"Replicas": 0')
    assert not is_refused(proxy.call("POST", path, stopped))
    for more in ('"Replicas": 2', '"Replicas": null', '"Replicas": 0}, "Global": {', '"replicas": 1'):
        assert is_refused(proxy.call("POST", path, spec.replace('"Replicas": 1', more))), more
    assert is_refused(proxy.call("POST", path, stopped.replace('"Mode"', '"Mode": {"Replicated": null}, "Mode"')))
