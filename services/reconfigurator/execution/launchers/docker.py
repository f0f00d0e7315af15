"""Instances as containers of a Docker Engine; the engine starts one that crashes again."""

from collections.abc import Collection
from functools import cached_property

import structlog
from docker import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, EndpointConfig

from services.reconfigurator.execution.launchers.containers import ALIAS, CELL, SHM_BYTES, WorkerTemplate, read_spec
from services.reconfigurator.execution.launchers.engine import ANSWER_S, call_engine
from services.reconfigurator.nodes import Node
from shared.messages.launch import InstanceSpec

log = structlog.get_logger(__name__)

ENDED = {"created", "exited", "dead", "removing"}  # states of containers that do not run and will not by themselves


class DockerLauncher:
    """Every node's instances are on one engine, that of DOCKER_HOST. See Launcher."""

    def __init__(self, template: WorkerTemplate, nodes: Collection[Node]) -> None:
        self._template = template
        self._nodes = nodes

    @cached_property
    def _engine(self) -> DockerClient:
        """Connects; so for use within `call_engine` alone."""
        return DockerClient.from_env(timeout=ANSWER_S)

    async def nodes(self) -> Collection[str]:
        return await call_engine(self._reached)

    async def running(self) -> Collection[InstanceSpec]:
        containers = await call_engine(self._containers)
        specs = [read_spec(container.labels) for container in containers if not _has_ended(container)]
        return [spec for spec in specs if spec is not None]

    async def start(self, spec: InstanceSpec) -> None:
        await call_engine(lambda: self._start(spec))

    async def stop(self, spec: InstanceSpec, grace_s: float) -> None:
        await call_engine(lambda: self._stop(spec, grace_s))

    async def close(self) -> None:
        if "_engine" in vars(self):
            self._engine.close()

    def _reached(self) -> Collection[str]:
        self._engine.ping()
        return {node.name for node in self._nodes}

    def _containers(self) -> list[Container]:
        wanted: dict[str, str | list[str] | bool] = {"label": f"{CELL}={self._template.cell}"}
        return self._engine.containers.list(all=True, filters=wanted, ignore_removed=True)

    def _start(self, spec: InstanceSpec) -> None:
        there = self._find(spec)
        if there is not None and not _has_ended(there):
            return
        if there is not None:
            there.remove(force=True)
        log.info("starting container", name=self._template.name(spec))
        container = self._engine.containers.create(
            self._template.image,
            name=self._template.name(spec),
            environment=self._template.environ_of(spec),
            labels=self._template.labels_of(spec),
            network=self._template.network or None,
            networking_config=self._networking(),
            volumes=list(self._template.volumes),
            device_requests=self._devices(spec),
            init=True,
            shm_size=SHM_BYTES,
            restart_policy={"Name": "on-failure"},
        )
        try:
            container.start()
        except APIError:
            container.remove(force=True)
            raise

    def _networking(self) -> dict[str, EndpointConfig] | None:
        if not self._template.network:
            return None
        return {self._template.network: self._engine.api.create_endpoint_config(aliases=[ALIAS])}

    def _devices(self, spec: InstanceSpec) -> list[DeviceRequest]:
        if not self._template.gpus:
            return []
        return [DeviceRequest(device_ids=[str(gpu) for gpu in spec.gpus], capabilities=[["gpu"]])]

    def _stop(self, spec: InstanceSpec, grace_s: float) -> None:
        container = self._find(spec)
        if container is None:
            return
        log.info("stopping container", name=container.name)
        container.stop(timeout=round(grace_s))
        container.remove(force=True)

    def _find(self, spec: InstanceSpec) -> Container | None:
        try:
            return self._engine.containers.get(self._template.name(spec))
        except NotFound:
            return None


def _has_ended(container: Container) -> bool:
    """Also one that hangs: its health check has failed for as long as the image lets it."""
    return container.status in ENDED or container.health == "unhealthy"
