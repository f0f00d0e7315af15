"""Kill the scheduler, a predictor and a worker with SIGKILL, each while the embedded cluster serves requests over HTTP.

python -m experiments.kill_under_load

After each kill the load continues until the service serves again. No request may fail, each must have exactly one
outcome, and blocks finished before the kill are not computed again.
"""

import asyncio
from statistics import mean
from typing import Annotated

import psutil
import typer

from experiments.fault_load import BusMonitor, FaultReply, bus_monitor, closed_loop, kill_service, recovered, until
from experiments.live_cluster import LiveCluster, held_out_requests, live_cluster
from experiments.report import RESULTS, Report
from shared.logs import configure_logs

RECOVERY_S = 90.0
COLUMNS = (
    *("killed", "requests", "failed", "outcomes", "twice", "in flight", "resumed", "steps kept"),
    *("latency before, s", "of those in flight, s", "added, s", "longest, s", "fallbacks"),
)
NOTES = """- outcomes: messages on `outcomes.*`; twice: requests with more than one.
- in flight: requests sent before the kill and answered after it; resumed: requests that a new scheduler continued from
  a checkpoint; steps kept: their steps that were not run again. After a worker's kill every token is kept: the
  scheduler holds them.
- added: the mean latency of the requests in flight above the mean before.
- fallbacks: the scheduler's count of one-shot estimates used in place of predictions; the run ends when new predictions
  arrive."""


def main(
    *,
    victims: Annotated[str, typer.Option(help="Services to kill, one run each.")] = "scheduler,predictor,worker",
    clients: Annotated[int, typer.Option(help="Number of concurrent requests.")] = 16,
    before: Annotated[float, typer.Option(help="Seconds of load before the kill.")] = 8.0,
) -> None:
    """Print the table, and write it to experiments/results/kill_under_load.md. Exit status 1: a request was lost."""
    configure_logs("kill_under_load", level="error")
    note = f"{clients} clients, each with one request at a time; blocks of 8 tokens, policy dilaserve."
    report = Report("Processes killed under load", note)
    report.add_columns(*COLUMNS)
    lost = 0
    for victim in victims.split(","):
        with live_cluster("--policy", "dilaserve", "--cache", "dual") as cluster:
            cells, failed = asyncio.run(run(victim, cluster, clients, before))
        report.add_row(victim, *cells)
        lost += failed
    report.add(NOTES)
    report.write(RESULTS / "kill_under_load.md")
    raise typer.Exit(1 if lost else 0)


async def run(victim: str, cluster: LiveCluster, clients: int, before_s: float) -> tuple[list[object], int]:
    """Kill one service. Returns: the cells of its row, and how many requests failed or had several outcomes."""
    prompts = [row.prompt for row in held_out_requests()]
    async with bus_monitor(cluster.nats_url) as monitor:
        async with closed_loop(cluster.url, prompts, clients) as replies:
            await asyncio.sleep(before_s)
            kill = await kill_service(victim, psutil.Process(), monitor)
            await until(lambda: recovered(kill, monitor, replies), RECOVERY_S)
        await until(lambda: len(monitor.outcomes) >= len(replies), RECOVERY_S)
    return figures(replies, monitor, kill.at_s)


def figures(replies: list[FaultReply], monitor: BusMonitor, killed_s: float) -> tuple[list[object], int]:
    failed = sum(not reply.request_id for reply in replies)
    twice = sum(count > 1 for count in monitor.outcomes.values())
    earlier = [reply for reply in replies if reply.ended_s <= killed_s]
    hit = [reply for reply in replies if reply.sent_s <= killed_s < reply.ended_s]
    kept = [steps for steps in monitor.kept_steps.values() if steps]
    before_s, hit_s = (mean(reply.latency_s for reply in part) for part in (earlier, hit))
    slowest_s = max(reply.latency_s for reply in hit)
    latencies = [f"{value:.2f}" for value in (before_s, hit_s, hit_s - before_s, slowest_s)]
    counts = [len(replies), failed, sum(monitor.outcomes.values()), twice, len(hit), len(kept), sum(kept)]
    row = [*counts, *latencies, max(stats.predictor_fallbacks for stats in monitor.stats)]
    return row, failed + twice


if __name__ == "__main__":
    typer.run(main)
