"""Break a system under load, fault by fault, and write the table of docs/reliability.md.

python -m experiments.faults --rows 'kill*'
python -m experiments.faults --where swarm
python -m experiments.faults --soak 30

Each row of a cluster on this machine has a cluster of its own; the rows of a Swarm share one. A row's figures replace
those of an earlier run in experiments/results/fault_table.jsonl, from which the table is made.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, replace
from fnmatch import fnmatch
from functools import partial
from time import monotonic
from typing import Annotated, Literal

import psutil
import typer

from experiments.docker_engine import CannotRun, docker_engine
from experiments.faults.accounts import FaultFigures, figures
from experiments.faults.actions import PROMPTS
from experiments.faults.growth import MB
from experiments.faults.load import open_loop, send
from experiments.faults.rows import FAULTS, Fault, NodeFault
from experiments.faults.soak import soak as run_soak
from experiments.faults.swarm import SwarmTarget
from experiments.faults.table import FaultRow, store
from experiments.faults.target import UnderLoad, local_target, processes_of
from experiments.report import environment_header
from experiments.swarm_cluster import SwarmCluster, three_node_cluster
from experiments.swarm_nodes import swarm_nodes
from shared.logs import configure_logs
from shared.tasks import cancel

BEFORE_S, AFTER_S = 15.0, 10.0  # load before a fault, and after its end
MIN_REQUESTS = 125
SAMPLE_S = 0.25  # interval of looks at the gateway's memory
CANNOT_RUN = 3  # exit status


def main(
    *,
    rows: Annotated[str, typer.Option(help="Rows to run, by name, comma-separated, with the wildcards * and ?.")] = "*",
    where: Annotated[
        Literal["local", "swarm"], typer.Option(help="On this machine, or on a Swarm of three engines (needs root).")
    ] = "local",
    soak: Annotated[
        float, typer.Option(min=0, help="Minutes of a mixed load with a fault a minute, in place of the rows.")
    ] = 0.0,
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Of the mixed load and its faults.")] = 1,
    build: Annotated[bool, typer.Option(help="Build the images of the Swarm first.")] = True,
) -> None:
    """Print each row as it ends, and write the table. Exit status 1: a request was lost, failed, ended twice or has a
    wrong text that is not marked; 3: the Swarm cannot run here."""
    configure_logs("faults", level="critical")
    if soak:
        raise typer.Exit(0 if run_soak(soak, rate, seed) else 1)
    chosen = [fault for fault in FAULTS if any(fnmatch(fault.name, pattern) for pattern in rows.split(","))]
    found: list[FaultRow] = []

    def add(fault: Fault | NodeFault, measured: FaultFigures) -> None:
        row = FaultRow(fault=fault.name, load=f"{rate:g}/s", environment=environment_header(), **asdict(measured))
        typer.echo(row)
        store(row)
        found.append(row)

    if where == "local":
        for fault in chosen:
            if isinstance(fault, Fault):
                add(fault, asyncio.run(break_local(fault, rate)))
    else:
        try:
            with docker_engine(), swarm_nodes(3) as nodes, three_node_cluster(nodes, build=build) as cluster:
                for fault in chosen:
                    if isinstance(fault, NodeFault):
                        add(fault, asyncio.run(break_node(fault, cluster, rate)))
        except CannotRun as error:
            typer.echo(f"not run: {error}", err=True)
            raise typer.Exit(CANNOT_RUN) from error
    raise typer.Exit(0 if all(row.is_right for row in found) else 1)


async def break_local(fault: Fault, rate: float) -> FaultFigures:
    """One row, in a cluster of its own."""
    async with local_target(fault.needs) as target:
        return await measure(target, partial(fault.apply, target), rate, has_form=fault.has_form)


async def break_node(fault: NodeFault, cluster: SwarmCluster, rate: float) -> FaultFigures:
    """One row, in the Swarm."""
    target = SwarmTarget(cluster, await asyncio.to_thread(fault.place, cluster))
    await target.serves_again()
    return await measure(target, partial(fault.apply, target), rate)


async def measure(
    target: UnderLoad, apply: Callable[[], Awaitable[None]], rate: float, *, has_form: bool = False
) -> FaultFigures:
    """Apply a fault under load. The load begins before the fault, and ends after it."""
    async with target.client() as http:
        alone = {prompt: (await send(http, prompt, has_form=has_form)).text or "" for prompt in PROMPTS}
        async with target.outcomes() as received:
            ended = asyncio.Event()
            load = asyncio.ensure_future(open_loop(http, PROMPTS, MIN_REQUESTS, rate, until=ended, has_form=has_form))
            await asyncio.sleep(BEFORE_S)
            began_s = monotonic()
            memory_mb = [gateway_mb()]
            sampling = asyncio.ensure_future(sample_gateway(memory_mb))
            await apply()
            ended_s = monotonic()
            await target.serves_again()
            await asyncio.sleep(AFTER_S)
            ended.set()
            await cancel([sampling])
            answers = [*await load, *target.burst]
    found = figures(answers, alone, received, began_s, ended_s)
    return replace(found, gateway_mb=(memory_mb[0], max(memory_mb), gateway_mb()))


def gateway_mb() -> float:
    """The memory of the gateways of this machine; 0 if there are none."""
    return float(sum(process.memory_info().rss for process in processes_of("gateway"))) / MB


async def sample_gateway(memory_mb: list[float]) -> None:
    """Append the gateway's memory again and again until cancelled."""
    while True:
        await asyncio.sleep(SAMPLE_S)
        with suppress(psutil.NoSuchProcess):
            memory_mb.append(gateway_mb())


if __name__ == "__main__":
    typer.run(main)
