"""The faults of a Swarm of three nodes, each with an engine of its own on this machine."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import msgspec

from experiments.faults.accounts import Received
from experiments.faults.load import Answer
from experiments.swarm_cluster import CELL_NAME, STACK, SwarmCluster
from experiments.swarm_nodes import SwarmNode
from shared.bus.subjects import Subjects

DOWN_S = 20.0  # for which a node is lost


@dataclass(slots=True)
class SwarmTarget:
    """The Swarm, and the node that a fault breaks, which the clients use first."""

    cluster: SwarmCluster
    node: SwarmNode
    burst: list[Answer] = field(default_factory=list)

    def client(self) -> httpx.AsyncClient:
        return self.cluster.client(self.node)

    @asynccontextmanager
    async def outcomes(self) -> AsyncIterator[Received]:
        with self.cluster.outcomes(on=next(node for node in self.cluster.nodes if node is not self.node)) as received:
            yield received

    async def serves_again(self) -> None:
        """Wait until both workers serve."""
        await asyncio.to_thread(self.cluster.wait_until_served, [node.name for node in self.cluster.nodes[1:]])


NodeApply = Callable[[SwarmTarget], Awaitable[None]]
Place = Callable[[SwarmCluster], SwarmNode]


async def lose_power(target: SwarmTarget) -> None:
    await _for_a_while(target.node.kill, target.node.start)


async def cut_off(target: SwarmTarget) -> None:
    await _for_a_while(target.node.cut, target.node.join)


async def drain(target: SwarmTarget) -> None:
    def set_to(availability: str) -> None:
        target.cluster.nodes[0].docker("node", "update", "--availability", availability, target.node.name)

    await _for_a_while(lambda: set_to("drain"), lambda: set_to("active"))


async def upgrade(target: SwarmTarget) -> None:
    await asyncio.to_thread(target.cluster.upgrade, "next")


async def _for_a_while(begin: Callable[[], None], end: Callable[[], None]) -> None:
    began_s = time.monotonic()
    await asyncio.to_thread(begin)
    await asyncio.sleep(max(0.0, began_s + DOWN_S - time.monotonic()))
    await asyncio.to_thread(end)


def last_node(cluster: SwarmCluster) -> SwarmNode:
    return cluster.nodes[2]


def manager(cluster: SwarmCluster) -> SwarmNode:
    """The first node, once every node has its images under another tag."""
    cluster.tag_images("next")
    return cluster.nodes[0]


def schedulers_node(cluster: SwarmCluster) -> SwarmNode:
    """The scheduler on node 2 leads, once that on node 1 was started again."""
    first, node, _ = cluster.nodes
    first.docker("restart", first.docker("ps", "--quiet", "--filter", f"name={STACK}_scheduler").strip())
    return node


def bus_leaders_node(cluster: SwarmCluster) -> SwarmNode:
    """The node of the server that leads the stream of requests."""
    first = cluster.nodes[0]
    server = first.docker("ps", "--quiet", "--filter", f"name={STACK}_nats.").strip()
    url = "http://127.0.0.1:8222/jsz?accounts=true&streams=true"
    state = msgspec.json.decode(first.docker("exec", server, "wget", "-q", "-O", "-", url))
    streams = {each["name"]: each for account in state["account_details"] for each in account["stream_detail"]}
    leader = streams[Subjects(CELL_NAME).stream("REQUESTS")]["cluster"]["leader"]
    return cluster.nodes[("nats", "nats-2", "nats-3").index(leader)]
