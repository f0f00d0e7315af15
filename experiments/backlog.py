"""Kill the leading scheduler of a cell with a long backlog, and measure how soon the standby holds every request.

python -m experiments.backlog

No instance runs, so that every request waits. A tenth of them have a checkpoint, as if they had begun. The prompts are
token ids, as gateways send them.
"""

import asyncio
from contextlib import ExitStack
from time import monotonic
from typing import Annotated

import numpy as np
import typer
from nats.aio.msg import Msg

from dilaserve.stack.up_options import DEMO_MODEL
from experiments.bus_failover import bus_servers
from experiments.fault_load import until
from experiments.live_cluster import CELL, held_out_requests
from experiments.report import RESULTS, Report, target_list
from experiments.service_process import cpu_time_s, service
from shared.arrays import pack_int32
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.logs import configure_logs
from shared.messages.checkpoints import Checkpoint
from shared.messages.requests import Request
from shared.messages.stats import SchedulerStats
from shared.text import TextModel

LIMIT_S = 120.0
MAX_READ_S, MAX_TAKEOVER_S = 5.0, 5.0
PUBLISHED = 500  # messages that are published at a time
BLOCK, OUTPUT_TOKENS = 32, 64
COLUMNS = (
    *("requests", "the standby leads after, s", "it holds all after another, s"),
    *("its CPU time, s", "the bus's CPU time, s"),
)
NOTES = """The first time is from the kill to the standby's first statistics, which includes the 3 s after which a lease
expires; the second from there to the first statistics with every request. Statistics are published each second. The CPU
times of the standby and of the NATS server, from the kill to the end, are their own work: the rest is waiting."""


def main(*, requests: Annotated[list[int] | None, typer.Option(help="Sizes of the backlog.")] = None) -> None:
    """Print the table, and write it to experiments/results/backlog.md. Exit status 1: a target is missed."""
    configure_logs("backlog", level="error")
    report = Report("A standby takes over a backlog")
    report.add_columns(*COLUMNS)
    for count in requests or [1_000, 20_000]:
        takeover_s, read_s, cpu_s, bus_cpu_s = asyncio.run(run(count))
        report.add_row(count, f"{takeover_s:.1f}", f"{read_s:.1f}", f"{cpu_s:.1f}", f"{bus_cpu_s:.1f}")
    targets = {
        f"the standby leads in under {MAX_TAKEOVER_S:g} s": takeover_s < MAX_TAKEOVER_S,
        f"it holds {count} requests in under {MAX_READ_S:g} s": read_s < MAX_READ_S,
    }
    report.add(NOTES, target_list(targets))
    report.write(RESULTS / "backlog.md")
    raise typer.Exit(0 if all(targets.values()) else 1)


async def run(requests: int) -> tuple[float, float, float, float]:
    """Returns: the seconds until the standby leads, and until it holds every request after that; its CPU time, and that
    of the bus."""
    with ExitStack() as started:
        servers, nats_url = started.enter_context(bus_servers(1))
        [server] = servers.processes.values()
        settings = {"nats_url": nats_url, "model": DEMO_MODEL, "policy": "dilaserve"}
        bus = await Bus.connect(nats_url, CELL, name="experiment")
        await bus.set_up()
        await store_backlog(bus, requests)
        stats: list[tuple[float, SchedulerStats]] = []

        async def receive(msg: Msg) -> None:
            stats.append((monotonic(), decode(msg.data, SchedulerStats)))

        await bus.nc.subscribe(bus.subjects.stats("scheduler"), cb=receive)
        leader, _ = started.enter_context(service("scheduler", **settings))
        await until(lambda: bool(stats) and stats[-1][1].active == requests, LIMIT_S)
        standby, log = started.enter_context(service("scheduler", **settings))
        await until(lambda: "standing by" in log.read_text(), LIMIT_S)
        first_epoch = stats[-1][1].epoch
        killed_s, before_s = monotonic(), [cpu_time_s(each) for each in (standby, server)]
        leader.kill()
        await until(lambda: stats[-1][1].epoch > first_epoch and stats[-1][1].active == requests, LIMIT_S)
        leads_s = next(at_s for at_s, each in stats if each.epoch > first_epoch)
        holds_s = next(at_s for at_s, each in stats if each.epoch > first_epoch and each.active == requests)
        spent_s = [cpu_time_s(each) - earlier_s for each, earlier_s in zip((standby, server), before_s, strict=True)]
        await bus.close()
    return leads_s - killed_s, holds_s - leads_s, spent_s[0], spent_s[1]


async def store_backlog(bus: Bus, requests: int) -> None:
    text = TextModel(DEMO_MODEL, "demo")
    prompts = [pack_int32(text.encode_prompt(row.prompt)) for row in held_out_requests()]
    checkpoint = Checkpoint(
        output_ids=np.full(BLOCK, 5, np.int32).tobytes(),
        block_length=BLOCK,
        steps=4,
        recompute_steps=1,
        threshold_tokens=0.9 * BLOCK,
        lowest_threshold=0.9,
        migrations=0,
        instances=["w-1"],
    )
    for first in range(0, requests, PUBLISHED):
        numbers = range(first, min(first + PUBLISHED, requests))
        bodies = [
            Request(request_id=f"r{i}", prompt_ids=prompts[i % len(prompts)], output_tokens=OUTPUT_TOKENS, slo_s=3600)
            for i in numbers
        ]
        begun = [bus.subjects.checkpoints(f"r{i}") for i in numbers if i % 10 == 0]
        await asyncio.gather(*(bus.store(subject, checkpoint) for subject in begun))
        await asyncio.gather(*(bus.store(bus.subjects.requests, body) for body in bodies))


if __name__ == "__main__":
    typer.run(main)
