"""The instances that one scheduler carries: a real scheduler on a real bus, with instances that compute nothing.

python -m experiments.cell_capacity

Each instance runs 60 iterations per second with 32 requests. A request that ends is replaced at once.
"""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
import uvloop
from nats.aio.msg import Msg

from dilaserve.stack.up_options import DEMO_MODEL
from experiments.bus_failover import bus_servers
from experiments.fault_load import until
from experiments.live_cluster import CELL
from experiments.paced_instances import PacedInstance, running_instances
from experiments.report import RESULTS, Report
from experiments.service_process import cpu_time_s, service
from shared.arrays import pack_int32
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.logs import configure_logs
from shared.messages.instances import Instance
from shared.messages.requests import Request
from shared.messages.stats import SchedulerStats
from shared.text import read_model_card

RATE = 60.0  # iterations of an instance per second
REQUESTS = 32  # of an instance
BLOCK, OUTPUT, PROMPT, TOKENS_PER_STEP = 32, 256, 128, 3
LIMIT_S, WARM_UP_S = 120.0, 5.0
PROFILE = f"""tp,batch_tokens,step_kind,latency_ms
1,32,recompute,4
1,16384,recompute,{4e3 / RATE}
1,32,cache,4
1,{REQUESTS * BLOCK},cache,{1e3 / RATE}
1,16384,cache,{4e3 / RATE}
"""
COLUMNS = (
    *("instances", "steps/s of a request", "messages per cycle", "scheduler's CPU, cores"),
    *("us per step", "ms per request", "bus's CPU, cores", "instances per core of the scheduler", "of the bus"),
)
NOTES = f"""{RATE:g} iterations per second of {REQUESTS} requests on each instance, {OUTPUT} output tokens in blocks
of {BLOCK}, {TOKENS_PER_STEP} tokens per step, policy dilaserve, one-shot estimates. CPU is of the whole process: it
includes the bus's messages, and the requests' arrivals, checkpoints and outcomes. Per step and per request it is
divided by each of these alone. *Instances per core*: at this number the process would use a whole core, by this row's
cost. Beyond it requests take their steps more slowly. The instances of the experiment share the machine, so that they
may fall short of {RATE:g} steps/s; the cost of a step counts those that ran."""


@dataclass(frozen=True, slots=True)
class CapacitySample:
    """The work of one run of `seconds`, and the CPU time that it took."""

    instances: int
    seconds: float
    steps: int
    iterations: int
    cycles_per_s: float  # of the scheduler's last statistics
    requests: int  # that ended
    scheduler_s: float  # CPU time
    bus_s: float

    def carried(self, cpu_s: float) -> float:
        """The instances at which a process that has used this CPU time would use a core, at the full rate."""
        return self.iterations / (cpu_s * RATE)


def main(
    *,
    instances: Annotated[str, typer.Option(help="Numbers of instances.")] = "1,4,16,32",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each run.")] = 20.0,
) -> None:
    """Print the table, and write it to experiments/results/cell_capacity.md."""
    configure_logs("cell_capacity", level="error")
    report = Report("The instances that one scheduler carries", NOTES)
    report.add_columns(*COLUMNS)
    for count in map(int, instances.split(",")):
        found = uvloop.run(measure(count, seconds))
        report.add_row(
            count,
            f"{found.steps / (found.seconds * REQUESTS * count):.1f}",
            f"{found.iterations / found.seconds / found.cycles_per_s:.1f}",
            f"{found.scheduler_s / found.seconds:.2f}",
            f"{1e6 * found.scheduler_s / found.steps:.1f}",
            f"{1e3 * found.scheduler_s / found.requests:.2f}",
            f"{found.bus_s / found.seconds:.2f}",
            *(f"{found.carried(cpu_s):.0f}" for cpu_s in (found.scheduler_s, found.bus_s)),
        )
    report.write(RESULTS / "cell_capacity.md")


async def measure(count: int, seconds: float) -> CapacitySample:
    """Run a cell of `count` instances."""
    with ExitStack() as started:
        servers, nats_url = started.enter_context(bus_servers(1))
        [server] = servers.processes.values()
        bus = await Bus.connect(nats_url, CELL, name="experiment")
        await bus.set_up()
        leader, _ = started.enter_context(
            service("scheduler", nats_url=nats_url, model=DEMO_MODEL, policy="dilaserve", estimates="one-shot")
        )
        stats, numbers, ended = list[SchedulerStats](), itertools.count(), 0

        async def receive(msg: Msg) -> None:
            stats.append(decode(msg.data, SchedulerStats))

        async def replace(_: Msg) -> None:
            nonlocal ended
            ended += 1
            await bus.publish(bus.subjects.requests, new_request(next(numbers)))

        await bus.nc.subscribe(bus.subjects.stats("scheduler"), cb=receive)
        await bus.nc.subscribe(bus.subjects.outcomes("*"), cb=replace)
        await until(lambda: bool(stats), LIMIT_S)
        instances = [PacedInstance(f"paced-{n}", BLOCK, TOKENS_PER_STEP) for n in range(count)]
        async with running_instances(bus, instances, new_registration(), 1 / RATE):
            for _ in range(count * REQUESTS):
                await bus.publish(bus.subjects.requests, new_request(next(numbers)))
            await until(lambda: _all_run(instances) and stats[-1].deferred == 0, LIMIT_S)
            await asyncio.sleep(WARM_UP_S)

            def counts() -> tuple[float, ...]:
                steps, iterations = (sum(getattr(each, name) for each in instances) for name in ("steps", "iterations"))
                now_s = asyncio.get_running_loop().time()
                return now_s, steps, iterations, ended, cpu_time_s(leader), cpu_time_s(server)

            before = counts()
            await asyncio.sleep(seconds)
            spent = [after - earlier for earlier, after in zip(before, counts(), strict=True)]
            cycles_per_s = stats[-1].cycles_per_s
        await bus.close()
    took_s, steps, iterations, requests, scheduler_s, bus_s = spent
    return CapacitySample(
        count, took_s, round(steps), round(iterations), cycles_per_s, round(requests), scheduler_s, bus_s
    )


def _all_run(instances: Sequence[PacedInstance]) -> bool:
    return all(each.iterations for each in instances)


def new_registration() -> Instance:
    """Of any instance: of the demo model, with room for REQUESTS requests."""
    return Instance(
        instance_id="any",
        model=read_model_card(DEMO_MODEL, "demo"),
        tp_degree=1,
        profile=PROFILE,
        max_batch_requests=REQUESTS,
        max_batch_tokens=65_536,
    )


def new_request(number: int) -> Request:
    prompt = pack_int32(np.full(PROMPT, 5))
    return Request(
        request_id=f"r{number}", prompt_ids=prompt, output_tokens=OUTPUT, block_length=BLOCK, slo_s=30, ignore_eos=True
    )


if __name__ == "__main__":
    typer.run(main)
