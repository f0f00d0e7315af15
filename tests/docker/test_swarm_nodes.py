"""The whole system on a Swarm of three nodes: a node of a worker loses its power under load."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from experiments.docker_engine import CannotRun
from experiments.faults.accounts import figures
from experiments.faults.load import open_loop, send
from experiments.live_cluster import held_out_requests
from experiments.swarm_cluster import STACK, SwarmCluster, three_node_cluster
from experiments.swarm_nodes import swarm_nodes
from tests.support.waiting import reached

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

PROMPTS = [row.prompt for row in held_out_requests()[:10]]
REQUESTS, RATE = 120, 4.0
BEFORE = 20  # requests answered before the node is killed
RECOVERY_S = 120.0


@pytest.fixture(scope="module")
def cluster(engine: None) -> Iterator[SwarmCluster]:
    try:
        with swarm_nodes(3) as nodes, three_node_cluster(nodes, build=True) as found:
            yield found
    except CannotRun as error:
        pytest.skip(str(error))


async def test_each_gateway_watches_the_disk_of_the_bus_on_its_node(cluster: SwarmCluster) -> None:
    for node in cluster.nodes:
        async with cluster.client(node) as http:
            metrics = (await http.get("/metrics")).text
        [free_bytes] = re.findall(r"^dilaserve_gateway_bus_free_bytes (\S+)$", metrics, re.MULTILINE)
        assert float(free_bytes) > 0, node.name


async def test_no_request_is_lost_or_fails_when_a_workers_node_loses_its_power(cluster: SwarmCluster) -> None:
    first, second, victim = cluster.nodes
    buses = [node.docker("ps", "--quiet", "--filter", f"name={STACK}_nats") for node in (first, second)]
    async with cluster.client(victim) as http:
        alone = {prompt: (await send(http, prompt)).text or "" for prompt in PROMPTS}
        with cluster.outcomes(on=first) as received:
            load = asyncio.ensure_future(open_loop(http, PROMPTS, REQUESTS, RATE))
            await open_loop(http, PROMPTS, BEFORE, RATE)
            killed_s = asyncio.get_running_loop().time()
            victim.kill()
            answers = await load
        row = figures(answers, alone, received, killed_s, killed_s)
        assert (row.failed, row.lost, row.duplicated, row.wrong) == (0, 0, 0, 0), f"{row}\n{cluster.last_logs()}"
    again = [node.docker("ps", "--quiet", "--filter", f"name={STACK}_nats") for node in (first, second)]
    assert again == buses  # no health check ended the other servers of the bus
    for node in 10 * [first, second]:  # no read goes to the server of the lost node any more
        assert cluster.plans(node), node.name

    lost = f"at once, after the loss of worker-{victim.name}-0"
    await reached(lambda: any(str(plan["reason"]).startswith(lost) for plan in cluster.plans(second)), RECOVERY_S)
    victim.start()
    await asyncio.to_thread(cluster.wait_until_served, [second.name, victim.name])
