"""What starts and stops instances: worker processes, containers of a Docker Engine, services of a Swarm."""

from collections.abc import Collection
from typing import Protocol

from shared.messages.launch import InstanceSpec


class Launcher(Protocol):
    """Every method raises RetryLater where the engine behind it does not answer. All are safe to repeat.

    A launcher keeps nothing in mind: what runs is read off the engine (labels, or the processes there are), so that a
    reconfigurator that was started again goes on from the truth.
    """

    async def nodes(self) -> Collection[str]:
        """The nodes where instances can be started now; of the configured ones, those missing are gone."""

    async def running(self) -> Collection[InstanceSpec]:
        """The instances of this cell that exist now, whoever started them, those being started included."""

    async def start(self, spec: InstanceSpec) -> None:
        """Start an instance under `spec.name`; returns before it serves. One that is there already is left as it is.

        Raises: BadInput if it can never be started.
        """

    async def stop(self, spec: InstanceSpec, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after `grace_s` seconds; returns when it is gone. One that is not there is no error."""

    async def close(self) -> None:
        """Let go of the engine; what runs goes on."""
