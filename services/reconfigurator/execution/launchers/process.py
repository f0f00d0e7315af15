"""Runs instances as processes of each node's supervisor, which restarts them and takes orders over the bus."""

from collections.abc import Collection, Sequence

from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.bus.errors import bus_errors
from shared.errors import BadInput, RetryLater
from shared.messages.launch import InstanceSpec, LaunchAction, LaunchOrder, LaunchReply

TIMEOUT_S = 5.0  # time that a supervisor may take to answer


class ProcessLauncher:
    """See Launcher. A node's GPUs are its CPU slots."""

    def __init__(self, bus: Bus, nodes: Sequence[str]) -> None:
        self._bus = bus
        self._nodes = nodes

    async def nodes(self) -> Collection[str]:
        return list(await self._running_by_node())

    async def running(self) -> Collection[InstanceSpec]:
        if not (by_node := await self._running_by_node()):
            raise RetryLater("no supervisor of a node answers")
        return [spec for specs in by_node.values() for spec in specs]

    async def start(self, spec: InstanceSpec) -> None:
        await self._order(spec.node, LaunchOrder(action=LaunchAction.START, spec=spec))

    async def stop(self, spec: InstanceSpec, grace_s: float) -> None:
        order = LaunchOrder(action=LaunchAction.STOP, spec=spec, grace_s=grace_s)
        await self._order(spec.node, order, timeout_s=grace_s + TIMEOUT_S)

    async def close(self) -> None:
        """Nothing: the bus belongs to the caller."""

    async def _running_by_node(self) -> dict[str, list[InstanceSpec]]:
        """The instances of each node that answers."""
        running = {}
        for node in self._nodes:
            try:
                running[node] = (await self._order(node, LaunchOrder(action=LaunchAction.LIST))).instances
            except RetryLater:
                continue
        return running

    async def _order(self, node: str, order: LaunchOrder, timeout_s: float = TIMEOUT_S) -> LaunchReply:
        """Raises: BadInput with the supervisor's error; RetryLater if it does not answer."""
        with bus_errors(f"reach the supervisor of node {node}"):
            answer = await self._bus.nc.request(self._bus.subjects.launch(node), encode(order), timeout=timeout_s)
        reply = decode(answer.data, LaunchReply)
        if reply.error:
            raise BadInput(reply.error)
        return reply
