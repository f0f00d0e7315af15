"""Apply each fault to a cluster of two instances under load, and write the table of docs/reliability.md.

python -m experiments.fault_table --rows 'kill*'

Each row has a cluster of its own. Its figures replace those of an earlier run in experiments/results/fault_table.jsonl,
from which the table is made.
"""

import asyncio
from contextlib import ExitStack
from dataclasses import asdict
from fnmatch import fnmatch
from time import monotonic
from typing import Annotated

import httpx
import typer

from experiments.fault_load import bus_monitor
from experiments.fault_table.faults import Fault
from experiments.fault_table.load import ANSWER_S, THRESHOLD, figures, open_loop, send
from experiments.fault_table.rows import FAULTS
from experiments.fault_table.table import FaultRow, read_rows, write_rows, write_table
from experiments.fault_table.target import FaultTarget, environment, model_option, own_bus
from experiments.live_cluster import held_out_requests, live_cluster
from experiments.report import environment_header
from shared.logs import configure_logs

PROMPTS = 20
OPTIONS = ("--instances", "2x1", "--policy", "dilaserve", "--thresholds", THRESHOLD, "--cache", "dual")


def main(
    *,
    rows: Annotated[str, typer.Option(help="Rows to run, by name, comma-separated, with the wildcards * and ?.")] = "*",
    requests: Annotated[int, typer.Option(help="Number of requests of a row.")] = 125,
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 5.0,
    before: Annotated[float, typer.Option(help="Seconds of load before the fault.")] = 6.0,
) -> None:
    """Print each row as it ends, and write the table."""
    configure_logs("fault_table", level="critical")
    for fault in FAULTS:
        if any(fnmatch(fault.name, pattern) for pattern in rows.split(",")):
            row = asyncio.run(run(fault, requests, rate, before))
            typer.echo(row)
            write_rows([*(old for old in read_rows() if old.fault != fault.name), row])
            write_table()


async def run(fault: Fault, requests: int, rate: float, before_s: float) -> FaultRow:
    """Run one row."""
    prompts = [row.prompt for row in held_out_requests()[:PROMPTS]]
    with ExitStack() as stack:
        stack.enter_context(environment(fault.needs.environ))
        async with own_bus(stack, fault.needs) as (nats, proxy, directory, port):
            bus = ("--nats-url", f"nats://127.0.0.1:{port}") if nats else ()
            options = (*OPTIONS, *fault.needs.options, *bus, *model_option(fault.needs, directory))
            cluster = await asyncio.to_thread(stack.enter_context, live_cluster(*options))
            nats_url = nats.url if nats else cluster.nats_url
            try:
                async with httpx.AsyncClient(base_url=cluster.url, timeout=ANSWER_S, trust_env=False) as http:
                    alone = {prompt: (await send(http, prompt)).text or "" for prompt in prompts}
                async with bus_monitor(nats_url) as monitor:
                    load = asyncio.ensure_future(open_loop(cluster.url, prompts, requests, rate))
                    await asyncio.sleep(before_s)
                    began_s = monotonic()
                    target = FaultTarget(cluster, nats_url, prompts, stack, proxy, nats, directory)
                    await fault.apply(target)
                    ended_s = monotonic()
                    answers = [*(await load), *target.burst]
            finally:
                await asyncio.to_thread(stack.close)
    measured = figures(answers, alone, monitor, began_s, ended_s)
    return FaultRow(fault=fault.name, load=f"{rate:g}/s", environment=environment_header(), **asdict(measured))


if __name__ == "__main__":
    typer.run(main)
