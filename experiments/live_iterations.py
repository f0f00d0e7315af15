"""The iterations of a live cluster's instances, read from its bus: their steps and computing time; and for requests
that stream their canvas, the confidences at each step."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
from nats.aio.msg import Msg

from experiments.live_cluster import SUBJECTS, subscribed
from shared.arrays import unpack_float32, unpack_int32, unpack_int64
from shared.bus.client import last_token
from shared.bus.codec import decode
from shared.messages.requests import Guesses
from shared.messages.steps import StepJobs, StepKind, StepResults
from simulator.trace_replay import Canvas

BLOCK = 32


@dataclass(frozen=True, slots=True)
class RecordedIteration:
    """One batch of steps that an instance ran."""

    cached: int  # cache steps
    recomputed: int  # recompute steps
    recomputed_tokens: int  # tokens of all recompute steps
    computing_s: float


@dataclass(slots=True)
class Recording:
    """Messages in the order of arrival."""

    jobs: list[StepJobs] = field(default_factory=list)
    results: list[StepResults] = field(default_factory=list)
    guesses: dict[tuple[str, int], Guesses] = field(default_factory=dict)  # by request and step

    def on_guesses(self, msg: Msg) -> None:
        guesses = decode(msg.data, Guesses)
        self.guesses[last_token(msg.subject), guesses.step] = guesses


@asynccontextmanager
async def record(nats_url: str) -> AsyncIterator[Recording]:
    """Record the jobs, step results and guesses sent during the body."""
    recording = Recording()
    handlers = {
        SUBJECTS.steps("*"): lambda msg: recording.jobs.append(decode(msg.data, StepJobs)),
        SUBJECTS.step_results("*"): lambda msg: recording.results.append(decode(msg.data, StepResults)),
        SUBJECTS.guesses("*"): recording.on_guesses,
    }
    async with subscribed(nats_url, handlers):
        yield recording


def iterations(jobs: Iterable[StepJobs], results: Iterable[StepResults]) -> list[RecordedIteration]:
    """The iterations, except those with a step whose job is not among `jobs`."""
    kinds: dict[tuple[int, ...], int] = {}
    for sent in jobs:
        columns = (unpack_int64(sent.tickets), unpack_int32(sent.steps), unpack_int32(sent.blocks))
        names = zip(*(column.tolist() for column in columns), strict=True)
        kinds.update(zip(names, unpack_int32(sent.kinds).tolist(), strict=True))
    found = []
    for message in results:
        # A job that was sent ahead for the next block may have the same step number.
        first = unpack_int32(message.counts).cumsum() - unpack_int32(message.counts)
        blocks = unpack_int32(message.positions)[first] // BLOCK
        columns = (unpack_int64(message.tickets), unpack_int32(message.steps), blocks)
        of_steps = [kinds.get(name) for name in zip(*(column.tolist() for column in columns), strict=True)]
        if of_steps and None not in of_steps:
            cached = of_steps.count(StepKind.CACHE)
            tokens = message.batch_tokens - BLOCK * cached
            found.append(RecordedIteration(cached, len(of_steps) - cached, tokens, message.latency_s))
    return found


def canvases(recording: Recording, output_length: int) -> dict[str, list[Canvas]]:
    """By request, each with `output_length` masks at first: its canvas before each step whose guesses were received."""
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
