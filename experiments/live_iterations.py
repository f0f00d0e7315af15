"""What a live cluster's instances run, read off its bus: each iteration's steps and how long it computed."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nats.aio.msg import Msg

from shared.arrays import unpack_int32, unpack_int64
from shared.bus import Bus
from shared.codec import decode
from shared.messages.steps import StepJobs, StepKind, StepResults

CELL = "cell0"
BLOCK = 32


@dataclass(frozen=True, slots=True)
class Iteration:
    """One batch of steps that an instance ran."""

    cached: int  # cache steps
    recomputed: int  # recompute steps
    recomputed_tokens: int  # that these computed together
    computing_s: float


@dataclass(slots=True)
class Recording:
    """Messages in the order in which they came."""

    jobs: list[StepJobs] = field(default_factory=list)
    results: list[StepResults] = field(default_factory=list)


@asynccontextmanager
async def record(nats_url: str) -> AsyncIterator[Recording]:
    """Keep what is sent to the instances and what they answer, until the end."""
    recording = Recording()

    async def on_jobs(msg: Msg) -> None:
        recording.jobs.append(decode(msg.data, StepJobs))

    async def on_results(msg: Msg) -> None:
        recording.results.append(decode(msg.data, StepResults))

    bus = await Bus.connect(nats_url, CELL, name="calibration")
    try:
        await bus.nc.subscribe(bus.subjects.steps("*"), cb=on_jobs)
        await bus.nc.subscribe(bus.subjects.step_results("*"), cb=on_results)
        await bus.nc.flush()
        yield recording
    finally:
        await bus.close()


def iterations(jobs: Iterable[StepJobs], results: Iterable[StepResults]) -> list[Iteration]:
    """What was run; iterations with a step whose job is not among `jobs` are left out."""
    kinds = {
        (ticket, step): kind
        for message in jobs
        for ticket, step, kind in zip(
            unpack_int64(message.tickets).tolist(),
            unpack_int32(message.steps).tolist(),
            unpack_int32(message.kinds).tolist(),
            strict=True,
        )
    }
    run = []
    for message in results:
        names = zip(unpack_int64(message.tickets).tolist(), unpack_int32(message.steps).tolist(), strict=True)
        of_steps = [kinds.get(name) for name in names]
        if of_steps and None not in of_steps:
            cached = of_steps.count(StepKind.CACHE)
            tokens = message.batch_tokens - BLOCK * cached
            run.append(Iteration(cached, len(of_steps) - cached, tokens, message.latency_s))
    return run
