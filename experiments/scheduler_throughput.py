"""How many step items a second the scheduler's core handles on one core.

    python -m experiments.scheduler_throughput

An item is one request's step: its result decoded and read, load control and thresholds run, its next job written.
Only the scheduler's own CPU time counts. A cycle takes whatever result messages have come while the one before ran:
one when it is idle, those of every instance when it is the bottleneck; the table shows both ends and between.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from experiments.machine import environment_header
from services.scheduler.core import CoreSettings, SchedulerCore
from services.scheduler.events import (
    EstimatesReceived,
    Event,
    InstanceUpdated,
    RequestArrived,
    RequestEstimates,
    SendJobs,
    StepResultsReceived,
)
from services.scheduler.factory import build_policy
from services.scheduler.settings import SchedulerSettings
from shared.arrays import pack_float32, pack_int32, unpack_int32, unpack_int64
from shared.bus.codec import decode, encode
from shared.messages.instances import Instance, ModelCard
from shared.messages.requests import Request
from shared.messages.steps import StepJobs, StepResults

BLOCK = 32
OUTPUT = 256
PROMPT = 128
REQUESTS_EACH = 32  # on each instance
WARM_UP = 4  # rounds of all instances that do not count: memory is touched for the first time
PER_STEP = 3  # tokens unmasked by a step
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
PROFILE = (
    "tp,batch_tokens,step_kind,latency_ms\n1,32,recompute,20\n1,16384,recompute,900\n1,32,cache,15\n1,16384,cache,700\n"
)
SIZES = (16, 64, 256)  # instances
REPORT = Path(__file__).parent / "results" / "scheduler_throughput.md"
TEXT = """Of the scheduler's core on one core, in CPU time; 32 requests an instance, 5 thresholds, policy dilaserve,
dual cache. A cycle takes whatever result messages have come while the one before ran: one where the scheduler is idle,
so that its fixed costs weigh most (the figure to plan with), one of every instance where it is the bottleneck. Load
control, which goes over all requests, runs when one comes, else every 50 ms.
"""
CARD = ModelCard(name="m", max_length=4096, mask_token_id=0, eos_token_id=1, vocab_size=1000)


@dataclass(frozen=True, slots=True)
class Measured:
    instances: int
    messages: int  # result messages that a cycle takes
    items: int
    seconds: float

    @property
    def items_per_s(self) -> float:
        return self.items / self.seconds


def new_core() -> SchedulerCore:
    settings = SchedulerSettings(model="m", policy="dilaserve", cache="dual", thresholds=THRESHOLDS)
    core_settings = CoreSettings(1, 0, THRESHOLDS, (6.0, 5.0, 4.0, 3.5, 3.0), caching=True, granularity=8)
    return SchedulerCore(core_settings, lambda estimates: build_policy(settings, estimates), lambda _ids, _stop: False)


def arrivals(start: int, number: int) -> Iterator[RequestArrived]:
    for i in range(start, start + number):
        request = Request(request_id=f"r{i}", output_tokens=OUTPUT, block_length=BLOCK)
        yield RequestArrived(request, np.ones(PROMPT, dtype=np.int32), OUTPUT, slo_s=30.0, arrival_s=float(i) / 1e6)


class Answers:
    """Results as an instance would send them, without a model: the next masks of the block, in order."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}  # masks left in the current block

    def to(self, instance_id: str, jobs: StepJobs) -> StepResults:
        tickets, blocks = unpack_int64(jobs.tickets), unpack_int32(jobs.blocks)
        left = np.array([self.left.get(ticket, BLOCK) for ticket in tickets.tolist()])
        counts = np.minimum(left, PER_STEP)
        self.left.update(zip(tickets.tolist(), np.where(left == counts, BLOCK, left - counts).tolist(), strict=True))
        starts = blocks * BLOCK + BLOCK - left
        positions = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
        return StepResults(
            instance_id=instance_id,
            epoch=jobs.epoch,
            tickets=jobs.tickets,
            steps=jobs.steps,
            counts=pack_int32(counts),
            positions=pack_int32(positions),
            tokens=pack_int32(np.full(len(positions), 7)),
            confidences=pack_float32(np.full(len(positions), 0.9)),
            confidence_stats=pack_float32(np.full((len(tickets), 5), 0.8)),
        )


def measure(instances: int, messages: int, seconds: float = 3.0) -> Measured:
    """Cycles that take `messages` result messages each, until so many CPU seconds are spent, once it is warm."""
    core, answers = new_core(), Answers()
    joined: list[Event] = [
        InstanceUpdated(
            Instance(instance_id=f"i{n}-x", model=CARD, tp_degree=1, profile=PROFILE, max_batch_tokens=65536)
        )
        for n in range(instances)
    ]
    active = instances * REQUESTS_EACH
    born, spent_s, items = active, 0.0, 0
    commands = core.cycle([*joined, *arrivals(0, active)], 1.0)
    waiting: dict[str, list[StepJobs]] = {}  # by instance, the first first
    _wait(waiting, (c for c in commands if isinstance(c, SendJobs)))
    for cycle in count():
        warm = cycle >= WARM_UP
        taken = [(name, _iteration(waiting.pop(name))) for name in list(waiting)[: messages if warm else instances]]
        predicted = [_predicted(c) for c in commands if isinstance(c, RequestEstimates)]
        fresh = list(arrivals(born, active - len(core.table)))
        born += len(fresh)
        inbox = [encode(answers.to(name, jobs)) for name, jobs in taken]
        started_s = time.process_time()
        results = [StepResultsReceived(decode(data, StepResults)) for data in inbox]
        commands = core.cycle([*fresh, *predicted, *results], 1.0 + spent_s)
        sent = [c for c in commands if isinstance(c, SendJobs)]
        for command in sent:
            encode(command.jobs)
        if warm:
            items += sum(len(jobs.tickets) // 8 for _, jobs in taken)
            spent_s += time.process_time() - started_s
        if spent_s >= seconds:
            break
        _wait(waiting, sent)
    return Measured(instances, messages, items, spent_s)


def _wait(waiting: dict[str, list[StepJobs]], sent: Iterable[SendJobs]) -> None:
    for command in sent:
        if command.jobs.tickets:
            waiting.setdefault(command.instance_id, []).append(command.jobs)


def _iteration(waiting: Sequence[StepJobs]) -> StepJobs:
    """All that waits at an instance runs together, and is answered by one message, as a worker does it."""
    return StepJobs(
        epoch=waiting[0].epoch,
        tickets=b"".join(jobs.tickets for jobs in waiting),
        steps=b"".join(jobs.steps for jobs in waiting),
        blocks=b"".join(jobs.blocks for jobs in waiting),
    )


def _predicted(asked: RequestEstimates) -> Event:
    left = asked.masks_left[:, None] / np.array([6.0, 5.0, 4.0, 3.5, 3.0])
    return EstimatesReceived(asked.tickets, asked.steps, left)


HEAD = "| instances | requests | messages a cycle | items/s | us/item |\n" + "| --- " * 5 + "|"


def line(result: Measured) -> str:
    """One row of the table."""
    requests, rate = REQUESTS_EACH * result.instances, result.items_per_s
    return f"| {result.instances} | {requests} | {result.messages} | {rate:,.0f} | {1e6 / rate:.1f} |"


def targets(results: list[Measured]) -> dict[str, bool]:
    """What is to be reached, and whether it is. Costs are compared where it is idle, and where it is the bottleneck."""
    least = min(result.items_per_s for result in results if result.instances == 16)
    by_size = {size: [r for r in results if r.instances == size] for size in SIZES}
    idle, busy = (max(by_size[16][i].items_per_s / by_size[size][i].items_per_s for size in SIZES) for i in (0, -1))
    cost = "cost of an item at up to 256 instances, times that at 16 (2 allowed)"
    return {
        f"16 instances: at least {least:,.0f} items/s, 30,000 wanted": least >= 30_000,
        f"{cost}, a message of each a cycle: {busy:.2f}": busy <= 2,
        f"{cost}, one message a cycle: {idle:.2f}": idle <= 2,
    }


def main() -> None:
    """Print the table, and write it to experiments/results/scheduler_throughput.md."""
    print(f"{environment_header()}\n\n{HEAD}", flush=True)
    results = []
    for instances in SIZES:
        for messages in (1, instances // 4, instances):
            results.append(measure(instances, messages))
            print(line(results[-1]), flush=True)
    verdict = "\n".join(f"- {name}: {'reached' if held else 'MISSED'}" for name, held in targets(results).items())
    print(f"\n{verdict}")
    table = "\n".join([HEAD, *map(line, results)])
    REPORT.write_text(
        f"# Step items a second\n\n{environment_header()}\n\n{TEXT}\n{table}\n\n{verdict}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
