"""Runs instances as Swarm services of one task, pinned to their node; the Swarm restarts an ended task."""

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import structlog
from docker.errors import NotFound
from docker.models.services import Service
from docker.types import EndpointSpec, Mount, NetworkAttachmentConfig, Resources, RestartPolicy, ServiceMode

from services.reconfigurator.execution.launchers.container_spec import ALIAS, CELL, SHM_BYTES, TMP, read_specs
from services.reconfigurator.execution.launchers.docker_api import TIMEOUT_S, EngineLauncher, engine_call
from shared.errors import RetryLater
from shared.messages.launch import InstanceSpec

log = structlog.get_logger(__name__)

POLL_S = 0.2
RESTART_DELAY_NS = 1_000_000_000
RUNNING = {"assigned", "accepted", "preparing", "ready", "starting", "running"}  # states of tasks with a container


class SwarmLauncher(EngineLauncher):
    """Nodes are known by their host names. The engine is a manager of the Swarm.

    The services of a node that is not available stay: when the node is back, the Swarm starts their tasks again.
    """

    _unusable: Mapping[str, str] = {}  # configured nodes that cannot be used, and why; as logged last

    @engine_call
    def nodes(self) -> Collection[str]:
        return self._available()

    @engine_call
    def running(self) -> Collection[InstanceSpec]:
        services = self._engine.services.list(filters={"label": f"{CELL}={self._settings.cell}"})
        running = [service for service in services if _num_replicas(service) or self._has_task(service)]
        available = self._available()
        specs = read_specs(service.attrs["Spec"]["Labels"] for service in running)
        return [spec for spec in specs if spec.node in available]

    @engine_call
    def start(self, spec: InstanceSpec) -> None:
        existing = self._find(spec)
        if existing is not None and _num_replicas(existing):
            return
        if existing is not None:  # an interrupted stop
            self._remove(existing, self._settings.stop_s)
        log.info("starting service", name=self._template.name(spec), node=spec.node)
        environ = self._template.environ_of(spec)
        if self._settings.worker_gpus:  # a Swarm has no device requests; the NVIDIA runtime of the node reads this
            environ["NVIDIA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpus))
        shared_memory = Mount("/dev/shm", None, type="tmpfs", tmpfs_size=SHM_BYTES)  # noqa: S108  (not our file)
        self._engine.services.create(
            self._settings.worker_image,
            name=self._template.name(spec),
            env=[f"{key}={value}" for key, value in environ.items()],
            labels=self._template.labels_of(spec),
            container_labels=self._template.labels_of(spec),  # visible on a node's engine
            constraints=[f"node.hostname == {spec.node}"],
            networks=[NetworkAttachmentConfig(network, [ALIAS])] if (network := self._settings.worker_network) else [],
            endpoint_spec=EndpointSpec(mode="dnsrr"),  # the alias then resolves to the address of each task
            mounts=[
                shared_memory,
                Mount(TMP, None, type="tmpfs"),
                *(Mount.parse_mount_string(volume) for volume in self._settings.worker_volumes),
            ],
            mode=ServiceMode("replicated", replicas=1),
            restart_policy=RestartPolicy(condition="any", delay=RESTART_DELAY_NS),
            stop_grace_period=round(self._settings.stop_s * 1e9),
            init=True,
            cap_drop=["ALL"],
            read_only=True,
            resources=Resources(mem_limit=self._settings.worker_memory_bytes or None),
        )

    @engine_call
    def stop(self, spec: InstanceSpec, grace_s: float) -> None:
        if (service := self._find(spec)) is not None:
            self._remove(service, grace_s)

    def _available(self) -> set[str]:
        """The configured nodes that run tasks; logs those that do not, when they change."""
        nodes = [node.attrs for node in self._engine.nodes.list()]
        unusable = unusable_nodes(self._nodes, nodes)
        for name in unusable.keys() - self._unusable.keys():
            log.warning("node not used", node=name, reason=unusable[name])
        self._unusable = unusable
        return self._nodes - unusable.keys()

    def _remove(self, service: Service, grace_s: float) -> None:
        """Scale down first: a service removed at once leaves a container that no listing shows."""
        log.info("stopping service", name=service.name)
        service.scale(0)
        deadline_s = time.monotonic() + grace_s + TIMEOUT_S
        while self._has_task(service):
            if time.monotonic() > deadline_s:
                raise RetryLater(f"the task of {service.name} has not ended")
            time.sleep(POLL_S)
        service.remove()

    def _has_task(self, service: Service) -> bool:
        """Whether a task has a container. Tasks of a node that is down or removed do not count: the manager lists them
        as running for a day or forever."""
        up = {node.id for node in self._engine.nodes.list() if node.attrs["Status"]["State"] != "down"}
        return any(task["Status"]["State"] in RUNNING and task.get("NodeID") in up for task in service.tasks())

    def _find(self, spec: InstanceSpec) -> Service | None:
        try:
            service: Service = self._engine.services.get(self._template.name(spec))
        except NotFound:
            return None
        return service


def unusable_nodes(configured: Collection[str], nodes: Collection[Mapping[str, Any]]) -> dict[str, str]:
    """The configured nodes that cannot run instances, and why; `nodes` as the engine describes those of the Swarm."""
    named = Counter(node["Description"]["Hostname"] for node in nodes)
    found = {name: "the Swarm has no node of this name" for name in configured if not named[name]}
    for node in nodes:
        name = node["Description"]["Hostname"]
        state, availability = node["Status"]["State"], node["Spec"]["Availability"]
        if name not in configured:
            continue
        if named[name] > 1:
            found[name] = "several nodes of the Swarm have this name"
        elif (state, availability) != ("ready", "active"):
            found[name] = f"it is {state}, its availability {availability}"
    return found


def _num_replicas(service: Service) -> int:
    return int(service.attrs["Spec"]["Mode"]["Replicated"]["Replicas"])
