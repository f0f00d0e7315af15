"""Makes the launcher that the settings name."""

import os
from collections.abc import Sequence

from services.reconfigurator.execution.launchers.launcher import Launcher
from services.reconfigurator.execution.launchers.process import ProcessLauncher
from services.reconfigurator.nodes import Node
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.client import Bus


def make_launcher(bus: Bus, settings: ReconfiguratorSettings, nodes: Sequence[Node]) -> Launcher:
    """The launcher that the settings name; docker-py is imported only if needed."""
    if settings.launcher == "process":
        return ProcessLauncher(bus, [node.name for node in nodes])
    from services.reconfigurator.execution.launchers.container_spec import read_template  # noqa: PLC0415

    template = read_template(settings, os.environ)
    if settings.launcher == "docker":
        from services.reconfigurator.execution.launchers.docker import DockerLauncher  # noqa: PLC0415

        return DockerLauncher(template, nodes)
    from services.reconfigurator.execution.launchers.swarm import SwarmLauncher  # noqa: PLC0415

    return SwarmLauncher(template, nodes)
