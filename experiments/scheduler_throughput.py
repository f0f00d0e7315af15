"""The step items per second that the scheduler handles on one core.

    python -m experiments.scheduler_throughput

An item is one step of one request: decode and apply its result, run load control and choose thresholds, encode its
next job. Only the scheduler's own CPU time counts. A cycle handles the result messages that arrived during the previous
cycle: one when the scheduler is idle, one of every instance when it is the bottleneck. The table shows both and a value
between.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import typer

from experiments.report import RESULTS, Report, target_list
from services.scheduler.core import CoreSettings, SchedulerCore
from services.scheduler.events import (
    EstimatesReceived,
    Event,
    InstanceUpdated,
    RequestArrived,
    RequestEstimates,
    SendJobs,
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
REQUESTS_PER_INSTANCE = 32
WARM_UP = 4  # rounds of all instances that are not counted
TOKENS_PER_STEP = 3  # tokens that a step unmasks
ITERATION_S = 0.03  # that each result reports
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
PROFILE = (
    "tp,batch_tokens,step_kind,latency_ms\n1,32,recompute,20\n1,16384,recompute,900\n1,32,cache,15\n1,16384,cache,700\n"
)
SIZES = (16, 64, 256)  # numbers of instances
NOTES = """CPU time of the scheduler's core on one core; 32 requests per instance, 5 thresholds, policy dilaserve, dual
cache. A cycle handles the result messages that arrived during the previous cycle: one when the scheduler is idle,
where its fixed costs weigh most (the figure to plan with), one of every instance when it is the bottleneck. Load
control, which reads all requests, runs at each arrival and otherwise every 50 ms. The policy lets requests sit out
iterations, so a cycle has fewer items than requests on the instance."""
CARD = ModelCard(name="m", max_length=4096, mask_token_id=0, eos_token_id=1, vocab_size=1000)


@dataclass(frozen=True, slots=True)
class ThroughputSample:
    instances: int
    items: int
    cycles: int
    requests: int  # that began, as many as ended
    seconds: float

    @property
    def items_per_s(self) -> float:
        return self.items / self.seconds


def new_core() -> SchedulerCore:
    settings = SchedulerSettings(model="m", policy="dilaserve", cache="dual", thresholds=THRESHOLDS)
    core_settings = CoreSettings(
        1, 0, THRESHOLDS, (6.0, 5.0, 4.0, 3.5, 3.0), caching=True, granularity=8, asks_predictor=True
    )
    return SchedulerCore(
        core_settings, lambda estimates: build_policy(settings, estimates), lambda _ids, _stop, _checked: False
    )


def arrivals(start: int, number: int) -> Iterator[RequestArrived]:
    for i in range(start, start + number):
        request = Request(request_id=f"r{i}", output_tokens=OUTPUT, block_length=BLOCK)
        yield RequestArrived(request, np.ones(PROMPT, dtype=np.int32), OUTPUT, slo_s=30.0, arrival_s=float(i) / 1e6)


class InstanceStub:
    """Answers step jobs as an instance does, without a model: it unmasks the next tokens of the block in order."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}  # masks left in the current block

    def run(self, instance_id: str, jobs: StepJobs) -> StepResults:
        tickets, blocks = unpack_int64(jobs.tickets), unpack_int32(jobs.blocks)
        left = np.array([self.left.get(ticket, BLOCK) for ticket in tickets.tolist()])
        counts = np.minimum(left, TOKENS_PER_STEP)
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
            latency_s=ITERATION_S,
        )


def measure(instances: int, messages: int, seconds: float = 3.0) -> ThroughputSample:
    """Run cycles of `messages` result messages each for this CPU time, after the warm-up."""
    core, stub = new_core(), InstanceStub()
    registered: list[Event] = [
        InstanceUpdated(
            Instance(instance_id=f"i{n}-x", model=CARD, tp_degree=1, profile=PROFILE, max_batch_tokens=65536)
        )
        for n in range(instances)
    ]
    active = instances * REQUESTS_PER_INSTANCE
    born, spent_s, items, began = active, 0.0, 0, 0
    commands = core.cycle([*registered, *arrivals(0, active)], 1.0)
    waiting: dict[str, list[StepJobs]] = {}  # by instance, oldest first
    _wait(waiting, (c for c in commands if isinstance(c, SendJobs)))
    for cycle in count():
        warm = cycle >= WARM_UP
        taken = [(name, _iteration(waiting.pop(name))) for name in list(waiting)[: messages if warm else instances]]
        predicted = [_predicted(c) for c in commands if isinstance(c, RequestEstimates)]
        fresh = list(arrivals(born, active - len(core.table)))
        born += len(fresh)
        queue = [encode(stub.run(name, jobs)) for name, jobs in taken]
        started_s = time.process_time()
        results = [decode(data, StepResults) for data in queue]
        commands = core.cycle([*fresh, *predicted, *results], 1.0 + spent_s)
        sent = [c for c in commands if isinstance(c, SendJobs)]
        for command in sent:
            encode(command.jobs)
        if warm:
            began += len(fresh)
            items += sum(len(jobs.tickets) // 8 for _, jobs in taken)
            spent_s += time.process_time() - started_s
        if spent_s >= seconds:
            break
        _wait(waiting, sent)
    return ThroughputSample(instances, items, cycle + 1 - WARM_UP, began, spent_s)


def _wait(waiting: dict[str, list[StepJobs]], sent: Iterable[SendJobs]) -> None:
    for command in sent:
        if command.jobs.tickets:
            waiting.setdefault(command.instance_id, []).append(command.jobs)


def _iteration(waiting: Sequence[StepJobs]) -> StepJobs:
    """All jobs that wait at an instance, as one iteration: like a worker, the stub answers it with one message."""
    return StepJobs(
        epoch=waiting[0].epoch,
        tickets=b"".join(jobs.tickets for jobs in waiting),
        steps=b"".join(jobs.steps for jobs in waiting),
        blocks=b"".join(jobs.blocks for jobs in waiting),
    )


def _predicted(request: RequestEstimates) -> Event:
    left = request.masks_left[:, None] / np.array([6.0, 5.0, 4.0, 3.5, 3.0])
    return EstimatesReceived(request.tickets, request.steps, left)


def targets(results: list[ThroughputSample]) -> dict[str, bool]:
    """Each target, and whether it is reached; costs are compared for the idle and for the saturated scheduler."""
    lowest = min(result.items_per_s for result in results if result.instances == 16)
    by_size = {size: [r for r in results if r.instances == size] for size in SIZES}
    idle, busy = (max(by_size[16][i].items_per_s / by_size[size][i].items_per_s for size in SIZES) for i in (0, -1))
    cost = "cost of an item at up to 256 instances, against 16 (target: at most 2 times)"
    return {
        f"16 instances: at least {lowest:,.0f} items/s (target: 30,000)": lowest >= 30_000,
        f"{cost}, one message of each instance per cycle: {busy:.2f}": busy <= 2,
        f"{cost}, one message per cycle: {idle:.2f}": idle <= 2,
    }


def main() -> None:
    """Print the table, and write it to experiments/results/scheduler_throughput.md."""
    report = Report("Step items per second", NOTES)
    report.add_columns("instances", "requests", "messages per cycle", "items/s", "us/item", "us/cycle", "us/request")
    results = []
    for instances in SIZES:
        for messages in (1, instances // 4, instances):
            result = measure(instances, messages)
            rate = result.items_per_s
            each = (
                f"{1e6 * result.seconds / count:.1f}" if count else "-"
                for count in (result.items, result.cycles, result.requests)
            )
            report.add_row(instances, REQUESTS_PER_INSTANCE * instances, messages, f"{rate:,.0f}", *each)
            results.append(result)
    report.add(target_list(targets(results)))
    report.write(RESULTS / "scheduler_throughput.md")


if __name__ == "__main__":
    typer.run(main)
