"""Runs instances as containers of a Docker Engine, which restarts crashed ones."""

from collections.abc import Collection

import structlog
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest

from services.reconfigurator.execution.launchers.container_spec import ALIAS, CELL, SHM_BYTES, TMP, read_specs
from services.reconfigurator.execution.launchers.docker_api import EngineLauncher, engine_call
from shared.messages.launch import InstanceSpec

log = structlog.get_logger(__name__)

ENDED = {"created", "exited", "dead", "removing"}  # states of containers that the engine does not run or restart


class DockerLauncher(EngineLauncher):
    """All nodes are on one engine, that of DOCKER_HOST."""

    @engine_call
    def nodes(self) -> Collection[str]:
        self._engine.ping()
        return self._nodes

    @engine_call
    def running(self) -> Collection[InstanceSpec]:
        filters: dict[str, str | list[str] | bool] = {"label": f"{CELL}={self._settings.cell}"}
        containers = self._engine.containers.list(all=True, filters=filters, ignore_removed=True)
        return read_specs(container.labels for container in containers if not _has_ended(container))

    @engine_call
    def start(self, spec: InstanceSpec) -> None:
        existing = self._find(spec)
        if existing is not None and not _has_ended(existing):
            return
        if existing is not None:
            existing.remove(force=True)
        log.info("starting container", name=self._template.name(spec))
        network, endpoint = self._settings.worker_network, self._engine.api.create_endpoint_config(aliases=[ALIAS])
        gpus = DeviceRequest(device_ids=[str(gpu) for gpu in spec.gpus], capabilities=[["gpu"]])
        container = self._engine.containers.create(
            self._settings.worker_image,
            name=self._template.name(spec),
            environment=self._template.environ_of(spec),
            labels=self._template.labels_of(spec),
            network=network or None,
            networking_config={network: endpoint} if network else None,
            volumes=list(self._settings.worker_volumes),
            device_requests=[gpus] if self._settings.worker_gpus else [],
            init=True,
            shm_size=SHM_BYTES,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            read_only=True,
            tmpfs={TMP: ""},
            mem_limit=self._settings.worker_memory_bytes,
            restart_policy={"Name": "on-failure"},
        )
        try:
            container.start()
        except APIError:
            container.remove(force=True)
            raise

    @engine_call
    def stop(self, spec: InstanceSpec, grace_s: float) -> None:
        if (container := self._find(spec)) is None:
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
    """Whether the container does not run, or hangs: its health check has failed too often."""
    return container.status in ENDED or container.health == "unhealthy"
