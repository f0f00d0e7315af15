"""Instances as Swarm services of one task, pinned to their node; the Swarm starts a task that ends again."""

import time
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import structlog
from docker import DockerClient
from docker.errors import NotFound
from docker.models.services import Service
from docker.types import EndpointSpec, Mount, NetworkAttachmentConfig, RestartPolicy, ServiceMode

from services.reconfigurator.execution.launchers.containers import ALIAS, CELL, SHM_BYTES, WorkerTemplate, read_spec
from services.reconfigurator.execution.launchers.engine import ANSWER_S, call_engine
from services.reconfigurator.nodes import Node
from shared.errors import RetryLater
from shared.messages.launch import InstanceSpec

log = structlog.get_logger(__name__)

LOOK_AGAIN_S = 0.2
RESTART_NS = 1_000_000_000
RUNNING = {"assigned", "accepted", "preparing", "ready", "starting", "running"}  # states of tasks with a container


class SwarmLauncher:
    """Nodes go by their host names. Talks to a manager of the Swarm. See Launcher."""

    def __init__(self, template: WorkerTemplate, nodes: Collection[Node]) -> None:
        self._template = template
        self._nodes = {node.name for node in nodes}

    @cached_property
    def _engine(self) -> DockerClient:
        """Connects; so for use within `call_engine` alone."""
        return DockerClient.from_env(timeout=ANSWER_S)

    async def nodes(self) -> Collection[str]:
        return await call_engine(self._ready)

    async def running(self) -> Collection[InstanceSpec]:
        return await call_engine(self._running)

    async def start(self, spec: InstanceSpec) -> None:
        await call_engine(lambda: self._start(spec))

    async def stop(self, spec: InstanceSpec, grace_s: float) -> None:
        await call_engine(lambda: self._stop(spec, grace_s))

    async def close(self) -> None:
        if "_engine" in vars(self):
            self._engine.close()

    def _ready(self) -> Collection[str]:
        there = self._engine.nodes.list()
        return self._nodes & {node.attrs["Description"]["Hostname"] for node in there if _serves(node.attrs)}

    def _running(self) -> list[InstanceSpec]:
        services = self._engine.services.list(filters={"label": f"{CELL}={self._template.cell}"})
        there = [service for service in services if _wanted_tasks(service) or self._has_task(service)]
        specs = [read_spec(service.attrs["Spec"]["Labels"]) for service in there]
        return [spec for spec in specs if spec is not None]

    def _start(self, spec: InstanceSpec) -> None:
        there = self._find(spec)
        if there is not None and _wanted_tasks(there):
            return
        if there is not None:  # its stop was cut short
            self._stop(spec, self._template.stop_s)
        log.info("starting service", name=self._template.name(spec), node=spec.node)
        environ = self._template.environ_of(spec)
        if self._template.gpus:  # a Swarm has no device requests; the NVIDIA runtime of the node reads this
            environ["NVIDIA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpus))
        shared_memory = Mount("/dev/shm", None, type="tmpfs", tmpfs_size=SHM_BYTES)  # noqa: S108  (no file of ours)
        self._engine.services.create(
            self._template.image,
            name=self._template.name(spec),
            env=[f"{key}={value}" for key, value in environ.items()],
            labels=self._template.labels_of(spec),
            container_labels=self._template.labels_of(spec),  # for who looks at one engine
            constraints=[f"node.hostname == {spec.node}"],
            networks=[NetworkAttachmentConfig(self._template.network, [ALIAS])] if self._template.network else [],
            endpoint_spec=EndpointSpec(mode="dnsrr"),  # the alias is then the address of each
            mounts=[shared_memory, *(Mount.parse_mount_string(volume) for volume in self._template.volumes)],
            mode=ServiceMode("replicated", replicas=1),
            restart_policy=RestartPolicy(condition="any", delay=RESTART_NS),
            stop_grace_period=round(self._template.stop_s * 1e9),
            init=True,
        )

    def _stop(self, spec: InstanceSpec, grace_s: float) -> None:
        """Scaled down first: a service removed at once leaves a container behind that nothing tells of."""
        service = self._find(spec)
        if service is None:
            return
        log.info("stopping service", name=service.name)
        service.scale(0)
        deadline_s = time.monotonic() + grace_s + ANSWER_S
        while self._has_task(service):
            if time.monotonic() > deadline_s:
                raise RetryLater(f"the task of {service.name} has not ended")
            time.sleep(LOOK_AGAIN_S)
        service.remove()

    def _has_task(self, service: Service) -> bool:
        """Whether one has a container. Those of a node that is down or removed are not waited for: they are told to be
        running for a day or for good, whatever became of them."""
        up = {node.id for node in self._engine.nodes.list() if node.attrs["Status"]["State"] != "down"}
        return any(task["Status"]["State"] in RUNNING and task.get("NodeID") in up for task in service.tasks())

    def _find(self, spec: InstanceSpec) -> Service | None:
        try:
            service: Service = self._engine.services.get(self._template.name(spec))
        except NotFound:
            return None
        return service


def _serves(node: Mapping[str, Any]) -> bool:
    return bool(node["Status"]["State"] == "ready" and node["Spec"]["Availability"] == "active")


def _wanted_tasks(service: Service) -> int:
    return int(service.attrs["Spec"]["Mode"]["Replicated"]["Replicas"])
