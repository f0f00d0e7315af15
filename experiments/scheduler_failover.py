"""Kill or stop the leading scheduler while the embedded cluster serves requests over HTTP, with and without a standby.

python -m experiments.scheduler_failover
"""

import asyncio
import signal
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import mean
from time import monotonic
from typing import Annotated

import typer

from experiments.fault_load import BusMonitor, FaultReply, bus_monitor, closed_loop, leading_process, until
from experiments.fault_table.load import Answer
from experiments.live_cluster import LiveCluster, held_out_requests, live_cluster
from experiments.report import RESULTS, Report
from shared.logs import configure_logs

STOP_S = 20.0  # length of a stop
AFTER_S = 5.0  # further load after a stop has ended
MAX_PAUSE_S = 5.0  # accepted with a standby
OUTCOMES_S = 90.0
COLUMNS = ("leader", "schedulers", "requests", "failed", "twice", "latency before, s", "pause, s", "longest, s")
NOTES = f"""- pause: the longest time without a reply after the fault; longest: the latency of the slowest request.
- stopped: SIGSTOP, and SIGCONT after {STOP_S:.0f} s; killed: SIGKILL. `dilaserve up` starts a killed scheduler again.
- twice: requests with more than one outcome on the bus. The gateway uses the first."""


def main(
    *,
    clients: Annotated[int, typer.Option(help="Number of concurrent requests.")] = 16,
    before: Annotated[float, typer.Option(help="Seconds of load before the fault.")] = 8.0,
) -> None:
    """Print the table, and write it to experiments/results/scheduler_failover.md. Exit status 1: a request failed, or
    the pause with a standby was too long."""
    configure_logs("scheduler_failover", level="error")
    report = Report("The leading scheduler fails under load", f"{clients} clients, each with one request at a time.")
    report.add_columns(*COLUMNS)
    passed = True
    for fault in (signal.SIGKILL, signal.SIGSTOP):
        for standby in (False, True):
            with live_cluster("--cache", "dual", *(["--standby"] if standby else [])) as cluster:
                replies, monitor, at_s = asyncio.run(run(cluster, fault, clients, before))
            failed = sum(not reply.request_id for reply in replies)
            twice = sum(count > 1 for count in monitor.outcomes.values())
            earlier_s = mean(reply.latency_s for reply in replies if reply.ended_s <= at_s)
            pause_s, longest_s = longest_pause_s(replies, at_s), max(reply.latency_s for reply in replies)
            name = "killed" if fault is signal.SIGKILL else f"stopped for {STOP_S:.0f} s"
            times = [f"{value:.2f}" for value in (earlier_s, pause_s, longest_s)]
            report.add_row(name, 2 if standby else 1, len(replies), failed, twice, *times)
            passed &= not failed and (not standby or pause_s < MAX_PAUSE_S)
    report.add(NOTES)
    report.write(RESULTS / "scheduler_failover.md")
    raise typer.Exit(0 if passed else 1)


async def run(
    cluster: LiveCluster, fault: signal.Signals, clients: int, before_s: float
) -> tuple[list[FaultReply], BusMonitor, float]:
    """Send the signal to the leader under load. Returns: the replies, the bus's messages, and the time of the fault."""
    prompts: Sequence[str] = [row.prompt for row in held_out_requests()]
    async with bus_monitor(cluster.nats_url) as monitor:
        async with closed_loop(cluster.url, prompts, clients) as replies:
            await asyncio.sleep(before_s)
            leader = await leading_process(cluster.nats_url)
            at_s = monotonic()
            leader.send_signal(fault)
            await asyncio.sleep(STOP_S)
            if fault is signal.SIGSTOP:
                leader.send_signal(signal.SIGCONT)
            await asyncio.sleep(AFTER_S)
        await until(lambda: len(monitor.outcomes) >= len(replies), OUTCOMES_S)
    return replies, monitor, at_s


def longest_pause_s(replies: Iterable[FaultReply | Answer], since_s: float) -> float:
    """The longest time without a reply from `since_s` to the last reply. Times are of one clock."""
    ends_s = sorted(reply.ended_s for reply in replies if reply.ended_s > since_s)
    return max(later_s - earlier_s for earlier_s, later_s in pairwise([since_s, *ends_s]))


if __name__ == "__main__":
    typer.run(main)
