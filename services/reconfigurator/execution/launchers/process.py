"""Worker processes, started and kept running by the supervisor of each node, which is asked over the bus."""

from collections.abc import Collection, Sequence

import nats.errors

from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.errors import BadInput, RetryLater
from shared.messages.launch import InstanceSpec, LaunchAction, LaunchOrder, LaunchReply

ANSWER_S = 5.0  # how long a supervisor may take to answer


class ProcessLauncher:
    """A node's GPUs are its CPU slots."""

    def __init__(self, bus: Bus, nodes: Sequence[str]) -> None:
        self._bus = bus
        self._nodes = nodes

    async def nodes(self) -> Collection[str]:
        return list(await self._lists())

    async def running(self) -> Collection[InstanceSpec]:
        lists = await self._lists()
        if not lists:
            raise RetryLater("no supervisor of a node answers")
        return [spec for specs in lists.values() for spec in specs]

    async def start(self, spec: InstanceSpec) -> None:
        await self._ask(spec.node, LaunchOrder(action=LaunchAction.START, spec=spec))

    async def stop(self, spec: InstanceSpec, grace_s: float) -> None:
        order = LaunchOrder(action=LaunchAction.STOP, spec=spec, grace_s=grace_s)
        await self._ask(spec.node, order, within_s=grace_s + ANSWER_S)

    async def close(self) -> None:
        """The bus is another's."""

    async def _lists(self) -> dict[str, list[InstanceSpec]]:
        """What runs on each node that answers."""
        found = {}
        for node in self._nodes:
            try:
                found[node] = (await self._ask(node, LaunchOrder(action=LaunchAction.LIST))).instances
            except RetryLater:
                continue
        return found

    async def _ask(self, node: str, order: LaunchOrder, within_s: float = ANSWER_S) -> LaunchReply:
        """Raises: BadInput with the supervisor's objection; RetryLater if it does not answer."""
        try:
            answer = await self._bus.nc.request(self._bus.subjects.launch(node), encode(order), timeout=within_s)
        except (nats.errors.Error, TimeoutError) as error:
            raise RetryLater(f"the supervisor of node {node} does not answer: {error!r}") from error
        reply = decode(answer.data, LaunchReply)
        if reply.error:
            raise BadInput(reply.error)
        return reply
