"""Serve a mixed load with a fault a minute. Every accepted request must end once, and no service may grow.

python -m experiments.soak
"""

import asyncio
import random
from typing import Annotated

import httpx
import typer

from experiments.live_cluster import CELL, LiveCluster, held_out_requests, live_cluster
from experiments.report import RESULTS, Report
from experiments.soak.accounts import Accounts, read_accounts
from experiments.soak.load import SoakClients
from experiments.soak.processes import Sample, break_services, growths, sample
from shared.bus.client import Bus
from shared.logs import configure_logs
from shared.tasks import cancel

PROMPTS = 50
TIMEOUT_S = 120.0
NOTES = """- accepted: requests that the scheduler has received, or that the bus or a reply has confirmed to a client.
- duplicated: outcomes that were stored a second time; different: texts that a client read and that the outcome has not.
- memory and descriptors: medians of the second and of the last quarter of the run, of processes older than 30 s."""


def main(
    *,
    minutes: Annotated[float, typer.Option(help="Length of the load.", min=1.0)] = 30.0,
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Seed of the load and of the faults.")] = 1,
) -> None:
    """Print the figures, and write them to experiments/results/soak.md. Exit status 1: a request was lost or served
    twice, or a service grew."""
    configure_logs("soak", level="critical")
    report = Report("Soak", f"{minutes:g} minutes, {rate:g} requests per second, seed {seed}, two instances.")
    with live_cluster("--instances", "2x1", "--policy", "dilaserve", "--cache", "dual") as cluster:
        found, clients, faults, samples = asyncio.run(run(cluster, minutes * 60, rate, seed))
    ends = " + ".join(f"{count} {status}" for status, count in sorted(found.statuses.items()))
    report.add(f"accepted: {found.accepted} = {ends} + {found.lost} lost")
    report.add(f"duplicated: {found.duplicated}; different: {found.different}; unfinished: {found.unfinished}")
    report.add(f"faults: {', '.join(faults)}")
    report.add("clients:", "\n".join(f"- {end}: {count}" for end, count in sorted(clients.ends.items())))
    report.add_columns("service", "memory, MB", "later", "descriptors", "later", "flat")
    grown = growths(samples, minutes * 60)
    for growth in grown:
        early_mb, late_mb = growth.rss_mb
        early, late = growth.descriptors
        flat = "yes" if growth.is_flat else "NO"
        report.add_row(growth.service, f"{early_mb:.0f}", f"{late_mb:.0f}", f"{early:.0f}", f"{late:.0f}", flat)
    report.add(NOTES)
    report.write(RESULTS / "soak.md")
    passed = not (found.lost or found.duplicated or found.different or found.unfinished)
    raise typer.Exit(0 if passed and all(growth.is_flat for growth in grown) else 1)


async def run(
    cluster: LiveCluster, seconds: float, rate: float, seed: int
) -> tuple[Accounts, SoakClients, list[str], list[Sample]]:
    """Serve the load. Returns: the accounts, the clients, the faults in their order, and the samples."""
    prompts = [row.prompt for row in held_out_requests()[:PROMPTS]]
    faults, samples = list[str](), list[Sample]()
    limits = httpx.Limits(max_connections=None)
    bus = await Bus.connect(cluster.nats_url, CELL, name="soak")
    try:
        async with httpx.AsyncClient(base_url=cluster.url, timeout=TIMEOUT_S, trust_env=False, limits=limits) as http:
            clients = SoakClients(http, bus, prompts, random.Random(seed))
            sampling = asyncio.create_task(sample(samples))
            breaking = asyncio.create_task(break_services(random.Random(seed), faults))
            try:
                await clients.run(rate, seconds)
            finally:
                await cancel([breaking, sampling])
            return await read_accounts(bus, clients.acknowledged, clients.texts), clients, faults, samples
    finally:
        await bus.close()


if __name__ == "__main__":
    typer.run(main)
