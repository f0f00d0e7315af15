"""Launchers start and stop instances: as worker processes, containers of a Docker Engine, or services of a Swarm."""

import os
from collections.abc import Collection, Sequence
from typing import Protocol

from services.reconfigurator.execution.launchers.process import ProcessLauncher
from services.reconfigurator.nodes import Node
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.client import Bus
from shared.messages.launch import InstanceSpec


class Launcher(Protocol):
    """Every method raises RetryLater if the engine behind it does not answer, and is safe to repeat.

    A launcher keeps no state: it reads from the engine which instances exist (labels or processes), so a restarted
    reconfigurator sees them.
    """

    async def nodes(self) -> Collection[str]:
        """The configured nodes where instances can be started now."""

    async def running(self) -> Collection[InstanceSpec]:
        """The instances of this cell on the nodes of `nodes`, including those being started and those that others have
        started."""

    async def start(self, spec: InstanceSpec) -> None:
        """Start it as `spec.name` unless it exists; returns before it serves. Raises: BadInput if it never can."""

    async def stop(self, spec: InstanceSpec, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s` seconds; returns when the instance is gone, or at once if it does
        not exist."""

    async def close(self) -> None:
        """Disconnect from the engine; instances keep running."""


def make_launcher(bus: Bus, settings: ReconfiguratorSettings, nodes: Sequence[Node]) -> Launcher:
    """The launcher that the settings name; docker-py is imported only if needed."""
    names = [node.name for node in nodes]
    if settings.launcher == "process":
        return ProcessLauncher(bus, names)
    from services.reconfigurator.execution.launchers.container_spec import WorkerTemplate  # noqa: PLC0415

    template = WorkerTemplate(settings, os.environ)
    if settings.launcher == "docker":
        from services.reconfigurator.execution.launchers.docker import DockerLauncher  # noqa: PLC0415

        return DockerLauncher(template, names)
    from services.reconfigurator.execution.launchers.swarm import SwarmLauncher  # noqa: PLC0415

    return SwarmLauncher(template, names)
