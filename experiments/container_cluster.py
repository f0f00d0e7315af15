"""The whole system in containers, from the files in compose/: started for an experiment and removed after it."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from docker import DockerClient
from docker.errors import APIError
from docker.models.containers import Container
from openai import OpenAI

from dilaserve.stack.bus_users import new_passwords, password_variable
from dilaserve.stack.ports import free_ports
from experiments.docker_engine import CannotRun, docker, swarm
from experiments.live_cluster import is_ready
from services.reconfigurator.execution.launchers.container_spec import CELL, read_spec

COMPOSE = Path(__file__).parents[1] / "compose"
PROFILE = Path(__file__).with_name("data") / "transition-profile.csv"
PROJECT = "dilaserve-transition"
TAG = "transition"  # of the images that are built here
BASES = {
    "PYTHON_IMAGE": "python:3.11.13-slim-bookworm",
    "NATS_IMAGE": "nats:2.15.0-alpine",
    "POSTGRES_IMAGE": "postgres:17.6-alpine",
    "ENGINE_PROXY_IMAGE": "haproxy:3.2.24-alpine",
}
COPY = ("cp", "/profile.csv", "/var/cache/dilaserve/profile.csv")  # where compose's profiler would write it
CELL_NAME = "transition"  # not the default: another system may run on the same engine
READY_S = 300.0

Places = tuple[tuple[int, ...], ...]
"""The GPUs of each instance, in ascending order."""


@dataclass(frozen=True, slots=True)
class ContainerCluster:
    """A cluster that is ready."""

    url: str
    key: str
    engine: DockerClient

    def places(self) -> Places:
        """The places of the running worker containers."""
        return _places(self._workers())

    def serving(self) -> Places:
        """The same, or nothing while one of them does not serve yet."""
        workers = self._workers()
        return _places(workers) if all(worker.health == "healthy" for worker in workers) else ()

    def kill_worker(self) -> None:
        """Kill the newest worker container."""
        max(self._workers(), key=lambda worker: str(worker.attrs["Created"])).kill()

    def ask_openai_client(self) -> None:
        """Send one request. Raises: openai.OpenAIError if it fails."""
        client = OpenAI(base_url=f"{self.url}/v1", api_key=self.key, timeout=READY_S)
        question = "A shop has 5 apples and buys 7 more. How many apples are there?"
        with client:
            reply = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": question}])
        print(f"OpenAI client: {reply.choices[0].message.content}", flush=True)

    def _workers(self) -> list[Container]:
        return self.engine.containers.list(filters={"label": f"{CELL}={CELL_NAME}"}, ignore_removed=True)


@contextmanager
def compose_cluster(*, build: bool) -> Iterator[ContainerCluster]:
    """`docker-compose up` on a free port; removed with its data at the end. Raises: CannotRun."""
    environ = {**compose_environ(), "COMPOSE_PROJECT_NAME": PROJECT, "NODES": "local:2"}
    if build:
        build_images(environ)
    try:
        _compose(environ, "run", "--rm", "-T", "--volume", f"{PROFILE}:/profile.csv:ro", "profiler", *COPY)
        _compose(environ, "up", "--detach")
        yield from _ready(environ)
    finally:
        _compose(environ, "down", "--volumes", "--remove-orphans", "--timeout", "30")


@contextmanager
def swarm_cluster(*, build: bool) -> Iterator[ContainerCluster]:
    """`docker stack deploy` on a Swarm of this node; removed with its data at the end. Raises: CannotRun."""
    with swarm():
        node = docker("info", "--format", "{{.Name}}").strip()
        environ = {**compose_environ(), "STACK": PROJECT, "NODE": node, "NODES": f"{node}:2", "PROFILE": str(PROFILE)}
        if build:
            build_images(environ)
        try:
            run_command([str(COMPOSE / "swarm.sh"), "deploy"], environ)
            yield from _ready(environ)
        finally:
            _remove_stack()


CLUSTERS = {"compose": compose_cluster, "swarm": swarm_cluster}


def compose_environ() -> dict[str, str]:
    """Variables of the compose files: base images available here, passwords, and short planning intervals."""
    passwords = {password_variable(user): password for user, password in new_passwords().items()}
    passwords |= {name: secrets.token_hex(16) for name in ("POSTGRES_PASSWORD", "GRAFANA_PASSWORD")}
    own = {**passwords, "TAG": TAG, "PORT": str(free_ports(1)[0]), "CELL": CELL_NAME}
    return {**os.environ, **_bases(), **own, "INTERVAL_S": "5", "WINDOW_S": "12"}


def _bases() -> dict[str, str]:
    """Empty if the base images are set by the user or can be pulled; else stand-ins, built if they do not exist."""
    if all(name in os.environ or _is_available(image) for name, image in BASES.items()):
        return {}
    print("the base images cannot be pulled: using stand-ins", flush=True)
    environ = {**os.environ, "PYTHON": sys.executable}
    made = subprocess.run([COMPOSE / "stand-ins.sh"], env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        raise CannotRun("no base images can be pulled, and no stand-ins can be made: see above")
    return dict(line.split("=", 1) for line in made.stdout.splitlines())


def _is_available(image: str) -> bool:
    for command in (("image", "inspect"), ("pull", "--quiet")):
        with suppress(RuntimeError):
            docker(*command, image)
            return True
    return False


def build_images(environ: Mapping[str, str]) -> None:
    """Raises: CannotRun if a build that downloads packages fails, RuntimeError if another build fails."""
    try:
        _compose(environ, "build", "--quiet")
    except RuntimeError as error:
        if environ.get("BUILD_IMAGE", "").startswith("dilaserve-base/"):  # contains the packages
            raise
        raise CannotRun(f"no images: {error}") from error


def _ready(environ: Mapping[str, str]) -> Iterator[ContainerCluster]:
    url = f"http://127.0.0.1:{environ['PORT']}"
    with closing(DockerClient.from_env()) as engine:
        _wait_until(lambda: is_ready(url) and all(found.health == "healthy" for found in _ours(engine)))
        yield ContainerCluster(url, _create_key(engine), engine)


def _create_key(engine: DockerClient) -> str:
    """The secret of a new API key, made as docs/deploy.md describes. Raises: RuntimeError."""
    gateway = next(found for found in _ours(engine) if "gateway" in str(found.name))
    create = 'dilaserve keys create experiment --json --database-url "$DILASERVE_DATABASE_URL"'
    return str(json.loads(docker("exec", str(gateway.id), "sh", "-c", create))["secret"])


def _places(workers: list[Container]) -> Places:
    specs = [spec for worker in workers if (spec := read_spec(worker.labels)) is not None]
    return tuple(sorted(spec.gpus for spec in specs))


def _compose(environ: Mapping[str, str], *arguments: str) -> None:
    run_command([*_compose_program(), "--file", str(COMPOSE / "docker-compose.yml"), *arguments], environ)


def _compose_program() -> list[str]:
    """Raises: CannotRun if neither program is installed."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    try:
        docker("compose", "version")
    except RuntimeError:
        raise CannotRun("no docker-compose is installed (apt install docker-compose)") from None
    return ["docker", "compose"]


def run_command(command: list[str], environ: Mapping[str, str]) -> None:
    """Run a command with its output on standard error. Raises: RuntimeError if it fails."""
    done = subprocess.run(command, env=dict(environ), stdout=sys.stderr, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}")


def _remove_stack() -> None:
    """Remove the stack with the workers' services and its volumes."""
    with closing(DockerClient.from_env()) as engine:
        docker("stack", "rm", PROJECT)
        _wait_until(lambda: not _ours(engine))
        for container in _ours(engine, ended=True):  # their volumes cannot be removed before
            with suppress(APIError):  # the engine may have removed it
                container.remove(force=True)
        _wait_until(lambda: not _ours(engine, ended=True))
        for volume in engine.volumes.list(filters={"name": PROJECT}):
            volume.remove(force=True)


def _ours(engine: DockerClient, *, ended: bool = False) -> list[Container]:
    """All running containers of the experiment; with `ended` also those that have ended."""
    labels = (f"com.docker.compose.project={PROJECT}", f"com.docker.stack.namespace={PROJECT}")
    return [
        found
        for label in labels
        for found in engine.containers.list(all=ended, filters={"label": label}, ignore_removed=True)
    ]


def _wait_until(condition: Callable[[], bool]) -> None:
    """Raises: RuntimeError after READY_S seconds."""
    deadline_s = time.monotonic() + READY_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"timed out after {READY_S:g} s; containers:\n{docker('ps', '--all')}")
        time.sleep(0.5)
