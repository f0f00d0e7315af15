"""What a live cluster's instances run, read off its bus: each iteration's steps and how long it computed; of requests
that are watched, the confidences that each step found."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
from nats.aio.msg import Msg

from shared.arrays import unpack_float32, unpack_int32, unpack_int64
from shared.bus.client import Bus, last_token
from shared.bus.codec import decode
from shared.messages.requests import Guesses
from shared.messages.steps import StepJobs, StepKind, StepResults
from simulator.trace_replay import Canvas

CELL = "cell0"
BLOCK = 32


@dataclass(frozen=True, slots=True)
class RecordedIteration:
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
    guesses: dict[tuple[str, int], Guesses] = field(default_factory=dict)  # by request and step


@asynccontextmanager
async def record(nats_url: str) -> AsyncIterator[Recording]:
    """Keep what is sent to the instances and what they answer, until the end."""
    recording = Recording()

    async def on_jobs(msg: Msg) -> None:
        recording.jobs.append(decode(msg.data, StepJobs))

    async def on_results(msg: Msg) -> None:
        recording.results.append(decode(msg.data, StepResults))

    async def on_guesses(msg: Msg) -> None:
        guesses = decode(msg.data, Guesses)
        recording.guesses[last_token(msg.subject), guesses.step] = guesses

    bus = await Bus.connect(nats_url, CELL, name="calibration")
    try:
        await bus.nc.subscribe(bus.subjects.steps("*"), cb=on_jobs)
        await bus.nc.subscribe(bus.subjects.step_results("*"), cb=on_results)
        await bus.nc.subscribe(bus.subjects.guesses("*"), cb=on_guesses)
        await bus.nc.flush()
        yield recording
    finally:
        await bus.close()


def iterations(jobs: Iterable[StepJobs], results: Iterable[StepResults]) -> list[RecordedIteration]:
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
            run.append(RecordedIteration(cached, len(of_steps) - cached, tokens, message.latency_s))
    return run


def canvases(recording: Recording, output_length: int) -> dict[str, list[Canvas]]:
    """By request, each with so many masks at first: its canvas before each step. A step whose guesses were lost is left
    out."""
    name_of = {state.ticket: state.request_id for message in recording.jobs for state in message.states}
    left: dict[str, int] = defaultdict(lambda: output_length)
    found: dict[str, list[Canvas]] = defaultdict(list)
    for message in recording.results:
        ends = unpack_int32(message.counts).cumsum()
        of_step = np.split(unpack_float32(message.confidences), ends[:-1])
        names = zip(unpack_int64(message.tickets).tolist(), unpack_int32(message.steps).tolist(), strict=True)
        for (ticket, step), unmasked in zip(names, of_step, strict=True):
            name = name_of[ticket]
            if guesses := recording.guesses.get((name, step)):
                confidences = np.concatenate([unmasked, unpack_float32(guesses.confidences)])
                found[name].append(Canvas(left[name], confidences.astype(np.float64)))
            left[name] -= len(unmasked)
    return found
