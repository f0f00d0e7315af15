"""Multiplies the CPU time of each part per request by the requests of a large deployment.

python -m experiments.capacity_budget

A gateway, a scheduler, a reconfigurator, NATS and Postgres serve requests over HTTP, on instances that compute nothing.
"""

import asyncio
import itertools
import math
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated

import httpx
import typer
import uvloop

from dilaserve.stack.ports import free_port
from dilaserve.stack.postgres import database_url, prepare_postgres
from dilaserve.stack.probes import gateway_ready, postgres_answers, wait_until
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.bus_failover import bus_servers
from experiments.cell_capacity import BLOCK, OUTPUT, RATE, TOKENS_PER_STEP, new_registration
from experiments.live_cluster import CELL, chat_body
from experiments.paced_instances import PacedInstance, running_instances
from experiments.planner_scale import DATA, RPS_PER_GPU, draw_workload, run_stage1, run_stage2
from experiments.report import RESULTS, Report
from experiments.scale_simulation import INSTANCES, RPS_PER_INSTANCE
from experiments.service_process import cpu_time_s, service
from services.reconfigurator.planning.plan import Solver
from services.reconfigurator.planning.plan_input import plan_input
from shared.bus.client import Bus
from shared.logs import configure_logs
from shared.profile import read_profile

SMALL_CELL = 4  # instances of the measured cell
WARM_UP_S, LIMIT_S = 5.0, 120.0
PLAN_INTERVAL_S = 300.0
NODE_GPUS = 8
PROMPT = "How many pears are left of twenty if eight are eaten?"
RPS = INSTANCES * RPS_PER_INSTANCE  # of a cell, at the trace's peak
NOTES = f"""Requests of {OUTPUT} output tokens, {TOKENS_PER_STEP} tokens per step, on {SMALL_CELL} instances with
{RATE:g} iterations per second. The CPU time is of the whole process; of Postgres, of all its processes. *Planner*: both
stages of one decision for {INSTANCES} GPUs each {PLAN_INTERVAL_S:g} s, with the default solver, divided by the requests
in this time. The cores are for {RPS:g} requests/s in each cell of {INSTANCES} instances, half of them streamed. With
more requests in an iteration, a request costs the scheduler and the bus less."""
LIMITS = {
    "gateway": "one core each; more gateways at one port",
    "scheduler": "one core each; one per cell",
    "bus": "several cores each; a server or a cluster for some of the cells",
    "reconfigurator": "one core each; one per cell",
    "Postgres": "several cores; one for all cells, or one for each",
    "planner": "a process of the reconfigurator; one per cell",
}


def main(
    *,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each run.")] = 20.0,
    clients: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 64,
    cells: Annotated[str, typer.Option(help="Numbers of cells of the budget.")] = "1,4,16,64",
) -> None:
    """Print the table, and write it to experiments/results/capacity_budget.md."""
    configure_logs("capacity_budget", level="error")
    numbers = [int(number) for number in cells.split(",")]
    report = Report("A budget of CPU cores", NOTES)
    columns = ("part", "CPU ms of a request", "of a streamed one", *(f"cores, cells: {number}" for number in numbers))
    report.add_columns(*columns, "limit of one process")
    whole, streamed = (uvloop.run(measure(seconds, clients, stream=stream)) for stream in (False, True))
    plan_s = planning_s() / (PLAN_INTERVAL_S * RPS)
    for part, limit in LIMITS.items():
        each_s = whole.get(part, plan_s), streamed.get(part, plan_s)
        cores = [sum(each_s) / 2 * RPS * number for number in numbers]
        report.add_row(part, *(f"{1e3 * cpu_s:.3f}" for cpu_s in each_s), *(f"{n:.2f}" for n in cores), limit)
    report.write(RESULTS / "capacity_budget.md")


def planning_s() -> float:
    """CPU seconds of one decision for a cell."""
    profile, before = read_profile(DATA / "h100-llada8b.csv"), os.times()
    given = plan_input(draw_workload(INSTANCES, NODE_GPUS, RPS_PER_GPU[True]), profile, cached=True)
    run_stage1(given, Solver.CBC, LIMIT_S)
    run_stage2(INSTANCES, NODE_GPUS, Solver.CBC, LIMIT_S)
    return math.fsum(os.times()[:4]) - math.fsum(before[:4])


async def measure(seconds: float, clients: int, *, stream: bool) -> Mapping[str, float]:
    """CPU seconds of each part per request."""
    with ExitStack() as started:
        servers, nats_url = started.enter_context(bus_servers(1))
        postgres, postgres_url = started.enter_context(database())
        await wait_until(postgres_answers, postgres_url)
        port, common = free_port(), {"nats_url": nats_url, "model": DEMO_MODEL, "model_name": "demo"}
        of_reconfigurator = {"nats_url": nats_url, "database_url": postgres_url, "tp_degrees": [1]}
        parts = {
            "gateway": started.enter_context(service("gateway", port=port, **common))[0],
            "scheduler": started.enter_context(service("scheduler", estimates="one-shot", **common))[0],
            "bus": next(iter(servers.processes.values())),
            "reconfigurator": started.enter_context(service("reconfigurator", **of_reconfigurator))[0],
            "Postgres": postgres,
        }
        bus = await Bus.connect(nats_url, CELL, name="experiment")
        await bus.set_up()
        instances = [PacedInstance(f"paced-{n}", BLOCK, TOKENS_PER_STEP) for n in range(SMALL_CELL)]
        url = f"http://127.0.0.1:{port}"
        async with running_instances(bus, instances, new_registration(), 1 / RATE):
            await wait_until(gateway_ready, url)
            async with closed_loop(url, clients, stream=stream) as replies:
                await asyncio.sleep(WARM_UP_S)
                first, before = len(replies), {part: cpu_time_s(process) for part, process in parts.items()}
                await asyncio.sleep(seconds)
                served = len(replies) - first
                spent = {part: cpu_time_s(process) - before[part] for part, process in parts.items()}
        await bus.close()
    return {part: cpu_s / served for part, cpu_s in spent.items()}


@asynccontextmanager
async def closed_loop(url: str, clients: int, *, stream: bool) -> AsyncIterator[list[int]]:
    """During the body each client sends its next request when it has a reply. Yields: the replies' statuses."""
    statuses, numbers = list[int](), itertools.count()

    async def one_client(http: httpx.AsyncClient) -> None:
        while True:
            prompt = f"{PROMPT} {next(numbers)}"
            body = chat_body(prompt, max_tokens=OUTPUT, stream=stream, slo_ms=30_000, ignore_eos=True)
            statuses.append((await http.post("/v1/chat/completions", json=body)).raise_for_status().status_code)

    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S, limits=limits, trust_env=False) as http:
        tasks = [asyncio.create_task(one_client(http)) for _ in range(clients)]
        try:
            yield statuses
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def database() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a Postgres server during the body. Yields: its process and its URL."""
    with tempfile.TemporaryDirectory(prefix="dilaserve-") as directory:
        data = Path(directory) / "data" / "postgres"
        program = prepare_postgres(data)
        assert program.log is not None, "the server has a log"
        with program.log.open("ab") as log:
            process = subprocess.Popen(program.command, stdout=log, stderr=log, user=program.user)
        try:
            yield process, database_url(data)
        finally:
            process.send_signal(program.stop_signal)
            process.wait()


if __name__ == "__main__":
    typer.run(main)
