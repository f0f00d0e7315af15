"""Faults of a Swarm of three nodes, on three engines of this machine, under load.

python -m experiments.swarm_faults

Needs root, and Docker. The system is deployed as docs/deploy.md describes, with a replicated bus.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import httpx
import msgspec
import typer

from experiments.docker_engine import CannotRun, docker_engine
from experiments.fault_table.load import Answer, figures, send
from experiments.live_cluster import held_out_requests
from experiments.report import RESULTS, Report, target_list
from experiments.scheduler_failover import longest_pause_s
from experiments.swarm_cluster import CELL_NAME, STACK, SwarmCluster, three_node_cluster
from experiments.swarm_nodes import SwarmNode, swarm_nodes
from shared.bus.subjects import Subjects

BEFORE_S, AFTER_S = 5.0, 15.0  # load before a fault, and after its end
PROMPTS = 20
CANNOT_RUN = 3  # exit status
COLUMNS = ("fault", "requests", "repeated", "failed", "lost", "duplicated", "wrong", "silence, s", "recovery, s")
NOTES = """- repeated: requests that their client sent again, to the next gateway, after a broken connection, 10 s
  without an answer or a reply with `Retry-After`; failed: requests that ended with another error; lost: requests
  without an answer after two minutes.
- duplicated: requests with two outcomes that differ; wrong: answers with another text than that of the prompt alone.
- silence: the longest time without an answer after the fault began; recovery: from the end of the fault to the end of
  the last repeated or slow request, which took twice as long as any before."""


@dataclass(frozen=True, slots=True)
class SwarmFault:
    """A fault of one node, which the clients use first; or of the whole system."""

    name: str
    begin: Callable[[], object]
    end: Callable[[], object]
    node: SwarmNode


def main(
    *,
    only: Annotated[str, typer.Option(help="Only the faults whose names contain this text.")] = "",
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 4.0,
    away: Annotated[float, typer.Option(help="Seconds for which a node is lost.")] = 20.0,
    build: Annotated[bool, typer.Option(help="Build the images first.")] = True,
) -> None:
    """Print the table, and write it to experiments/results/swarm_faults.md. Exit status 1: a target is missed; 3: it
    cannot run here."""
    note = f"{rate:g} requests/s, each with an `Idempotency-Key`; a node is lost for {away:g} s."
    report = Report("Faults of a Swarm of three nodes", note)
    report.add_columns(*COLUMNS)
    try:
        with docker_engine(), swarm_nodes(3) as nodes, three_node_cluster(nodes, build=build) as cluster:
            bad = [
                asyncio.run(run(cluster, fault, rate, away, report))
                for make in (
                    workers_node_killed,
                    node_cut_off,
                    node_drained,
                    schedulers_node_killed,
                    bus_node_killed,
                    upgrade,
                )
                if only in (fault := make(cluster)).name
            ]
    except CannotRun as error:
        typer.echo(f"not run: {error}", err=True)
        raise typer.Exit(CANNOT_RUN) from error
    report.add(NOTES, target_list({"nothing lost, failed, duplicated or wrong": not sum(bad)}))
    report.write(RESULTS / "swarm_faults.md")
    raise typer.Exit(1 if sum(bad) else 0)


async def run(cluster: SwarmCluster, fault: SwarmFault, rate: float, away_s: float, report: Report) -> int:
    """Add the row of a fault. Returns: the number of requests that did not end well."""
    prompts = [row.prompt for row in held_out_requests()[:PROMPTS]]
    workers = [node.name for node in cluster.nodes[1:]]
    await asyncio.to_thread(cluster.wait_until_served, workers)
    observer = next(node for node in cluster.nodes if node is not fault.node)
    async with cluster.client(fault.node) as http:
        alone = {prompt: (await send(http, prompt)).text or "" for prompt in prompts}
        with cluster.outcomes(on=observer) as monitor:
            stop = asyncio.Event()
            load = asyncio.ensure_future(send_until(http, prompts, rate, stop))
            await asyncio.sleep(BEFORE_S)
            began_s = time.monotonic()
            await asyncio.to_thread(fault.begin)
            if fault.end is not fault.begin:
                await asyncio.sleep(max(0.0, began_s + away_s - time.monotonic()))
                await asyncio.to_thread(fault.end)
            ended_s = time.monotonic()
            await asyncio.to_thread(cluster.wait_until_served, workers)
            await asyncio.sleep(AFTER_S)
            stop.set()
            answers = await load
    row = figures(answers, alone, monitor, began_s, ended_s)
    bad = [row.failed, row.lost, row.duplicated, row.wrong]
    silence_s = f"{longest_pause_s(answers, began_s):.1f}"
    report.add_row(fault.name, row.requests, row.repeated, *bad, silence_s, row.recovery_s)
    return sum(bad)


async def send_until(http: httpx.AsyncClient, prompts: Sequence[str], rate: float, stop: asyncio.Event) -> list[Answer]:
    """Send requests until `stop` is set, and wait for their answers."""
    tasks: list[asyncio.Future[Answer]] = []
    while not stop.is_set():
        tasks.append(asyncio.ensure_future(send(http, prompts[len(tasks) % len(prompts)])))
        with suppress(TimeoutError):
            async with asyncio.timeout(1 / rate):
                await stop.wait()
    return await asyncio.gather(*tasks)


def workers_node_killed(cluster: SwarmCluster) -> SwarmFault:
    node = cluster.nodes[2]
    return SwarmFault("a worker's node loses its power", node.kill, node.start, node)


def node_cut_off(cluster: SwarmCluster) -> SwarmFault:
    node = cluster.nodes[2]
    return SwarmFault("a worker's node is cut off, and joins again", node.cut, node.join, node)


def node_drained(cluster: SwarmCluster) -> SwarmFault:
    node = cluster.nodes[2]
    update = partial(cluster.nodes[0].docker, "node", "update", "--availability")
    return SwarmFault(
        "a worker's node is drained", partial(update, "drain", node.name), partial(update, "active", node.name), node
    )


def schedulers_node_killed(cluster: SwarmCluster) -> SwarmFault:
    """The scheduler on node 2 leads, once that on node 1 was started again."""
    manager, node, _ = cluster.nodes
    manager.docker("restart", manager.docker("ps", "--quiet", "--filter", f"name={STACK}_scheduler").strip())
    return SwarmFault("the node of the leading scheduler loses its power", node.kill, node.start, node)


def bus_node_killed(cluster: SwarmCluster) -> SwarmFault:
    """The server that leads the stream of requests."""
    manager = cluster.nodes[0]
    server = manager.docker("ps", "--quiet", "--filter", f"name={STACK}_nats.").strip()
    url = "http://127.0.0.1:8222/jsz?accounts=true&streams=true"
    state = msgspec.json.decode(manager.docker("exec", server, "wget", "-q", "-O", "-", url))
    streams = {each["name"]: each for account in state["account_details"] for each in account["stream_detail"]}
    leader = streams[Subjects(CELL_NAME).stream("REQUESTS")]["cluster"]["leader"]
    node = cluster.nodes[("nats", "nats-2", "nats-3").index(leader)]
    return SwarmFault("the node of the bus's leader loses its power", node.kill, node.start, node)


def upgrade(cluster: SwarmCluster) -> SwarmFault:
    cluster.tag_images("next")
    begin = partial(cluster.upgrade, "next")
    return SwarmFault("upgrade, service by service", begin, begin, cluster.nodes[0])


if __name__ == "__main__":
    typer.run(main)
