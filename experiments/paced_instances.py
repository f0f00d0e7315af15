"""Instances that compute nothing, on a real bus: each runs its iterations at a fixed rate."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from msgspec.structs import replace
from nats.aio.msg import Msg

from shared.arrays import pack_float32, pack_int32, pack_int64, unpack_int32, unpack_int64
from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.bus.subjects import HEARTBEAT_S, step_consumer
from shared.messages.instances import Instance
from shared.messages.steps import StepJobs, StepResults
from shared.tasks import cancel, pause

TOKEN = 100  # that every step writes


@dataclass(slots=True)
class PacedInstance:
    """Unmasks the next tokens of each request's block in order."""

    instance_id: str
    block_length: int
    tokens_per_step: int
    iterations: int = 0
    steps: int = 0
    _batches: dict[int, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    _requests: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # last step, block and its masks left

    def accept(self, jobs: StepJobs) -> None:
        """Keep the jobs for their iterations."""
        for ticket in unpack_int64(jobs.drops).tolist():
            self._requests.pop(ticket, None)
        columns = (unpack_int32(column).tolist() for column in (jobs.steps, jobs.blocks, jobs.batches))
        for ticket, step, block, batch in zip(unpack_int64(jobs.tickets).tolist(), *columns, strict=True):
            self._batches[batch].append((ticket, step, block))

    def run(self, epoch: int) -> StepResults | None:
        """Run the next iteration. Returns: its results; None if there are no jobs."""
        while self._batches:
            jobs = self._batches.pop(min(self._batches))
            if ran := [done for job in jobs if (done := self._step(*job))]:
                return self._results(epoch, ran)
        return None

    def _step(self, ticket: int, step: int, block: int) -> tuple[int, int, int, int] | None:
        """Returns: ticket, step, first position and number of tokens; None if the job is over."""
        last, current, left = self._requests.get(ticket, (-1, -1, 0))
        if step <= last or block < current or (block == current and not left):
            return None
        left = left if block == current else self.block_length
        count = min(self.tokens_per_step, left)
        self._requests[ticket] = step, block, left - count
        return ticket, step, (block + 1) * self.block_length - left, count

    def _results(self, epoch: int, ran: Sequence[tuple[int, int, int, int]]) -> StepResults:
        tickets, steps, starts, counts = zip(*ran, strict=True)
        positions = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
        self.iterations += 1
        self.steps += len(ran)
        return StepResults(
            instance_id=self.instance_id,
            epoch=epoch,
            tickets=pack_int64(tickets),
            steps=pack_int32(steps),
            counts=pack_int32(counts),
            positions=pack_int32(positions),
            tokens=pack_int32(np.full(len(positions), TOKEN)),
            confidences=pack_float32(np.full(len(positions), 0.9)),
            confidence_stats=pack_float32(np.full((len(ran), 5), 0.8)),
        )


@asynccontextmanager
async def running_instances(
    bus: Bus, instances: Sequence[PacedInstance], registration: Instance, interval_s: float
) -> AsyncIterator[None]:
    """Register the instances, each with its own id, and run them during the body, an iteration each `interval_s`."""
    tasks = [asyncio.create_task(_run(bus, each, registration, interval_s)) for each in instances]
    try:
        yield
    finally:
        await cancel(tasks)


async def _run(bus: Bus, instance: PacedInstance, registration: Instance, interval_s: float) -> None:
    epoch = 0

    async def receive(msg: Msg) -> None:
        nonlocal epoch
        await msg.ack()
        jobs = decode(msg.data, StepJobs)
        epoch = jobs.epoch
        instance.accept(jobs)

    async def iterate() -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s = max(next_s + interval_s, loop.time())  # a late iteration delays the later ones
            await pause(next_s - loop.time())
            if results := instance.run(epoch):
                await bus.publish(bus.subjects.step_results(instance.instance_id), results)

    async def renew() -> None:
        bucket = await bus.bucket(bus.subjects.instances_bucket)
        while True:
            await bucket.put(instance.instance_id, encode(replace(registration, instance_id=instance.instance_id)))
            await pause(HEARTBEAT_S)

    consumer = step_consumer(bus.subjects, instance.instance_id)
    consume = partial(bus.run_consumer, bus.subjects.stream("STEPS"), consumer, receive)
    async with asyncio.TaskGroup() as tasks:
        for run in (consume, iterate, renew):
            tasks.create_task(run())
