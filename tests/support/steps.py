"""The scheduler's part in tests of engines: encodes step jobs, decodes step results, and does both to the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from services.worker.engine.engine import Engine
from shared.arrays import (
    Float32,
    Int32,
    pack_float32,
    pack_int32,
    pack_int64,
    unpack_float32,
    unpack_int32,
    unpack_int64,
)
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults


@dataclass(slots=True)
class Decode:
    """A request's state in the scheduler; it is decoded block by block at one threshold."""

    ticket: int
    prompt: list[int]
    output_length: int
    block_length: int
    threshold: float
    mask_id: int
    temperature: float = 0.0
    seed: int = 0
    cached: bool = False  # whether the steps of a block after its first are cache steps
    is_aligned: bool = False  # of a block-causal model: blocks lie on a grid of absolute positions
    output: Int32 = field(init=False)
    known: Float32 = field(init=False)  # confidences of the output
    trace: list[tuple[int, list[int], list[int]]] = field(default_factory=list)  # block, positions, tokens
    confidences: list[list[float]] = field(default_factory=list)
    stats: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.output = np.full(self.output_length, self.mask_id, dtype=np.int32)
        self.known = np.zeros(self.output_length, dtype=np.float32)

    @property
    def done(self) -> bool:
        return not (self.output == self.mask_id).any()

    @property
    def block(self) -> int:
        offset = len(self.prompt) % self.block_length if self.is_aligned else 0
        return (offset + int(np.flatnonzero(self.output == self.mask_id)[0])) // self.block_length

    @property
    def kind(self) -> StepKind:
        started = bool(self.trace) and (self.is_aligned or self.trace[-1][0] == self.block)
        return StepKind.CACHE if self.cached and started else StepKind.RECOMPUTE

    @property
    def state(self) -> RequestState:
        return RequestState(
            ticket=self.ticket,
            request_id=f"r{self.ticket}",
            prompt_length=len(self.prompt),
            block_length=self.block_length,
            canvas=pack_int32([*self.prompt, *self.output]),
            confidences=self.known.tobytes(),
            temperature=self.temperature,
            seed=self.seed,
        )

    def apply(self, positions: list[int], tokens: list[int], confidences: list[float], stats: list[float]) -> None:
        assert all(self.output[position] == self.mask_id for position in positions)
        self.trace.append((self.block, positions, tokens))
        self.output[positions], self.known[positions] = tokens, confidences
        self.confidences.append(confidences)
        self.stats.append(stats)


def jobs_for(decodes: list[Decode], *, epoch: int = 1, drops: Sequence[int] = ()) -> StepJobs:
    """The next step of each request; the first one carries its state."""
    return StepJobs(
        epoch=epoch,
        tickets=pack_int64([d.ticket for d in decodes]),
        steps=pack_int32([len(d.trace) for d in decodes]),
        blocks=pack_int32([d.block for d in decodes]),
        thresholds=pack_float32([d.threshold for d in decodes]),
        kinds=pack_int32([d.kind for d in decodes]),
        states=[d.state for d in decodes if not d.trace],
        drops=pack_int64(drops),
    )


def run_step(engine: Engine, jobs: StepJobs) -> StepResults:
    """The results of the iteration that the jobs start."""
    engine.accept(jobs)
    results = engine.iterate()
    assert results is not None
    return results


def decode_together(
    engine: Engine, decodes: Sequence[Decode], fields: Mapping[int, Mapping[str, Any]] | None = None
) -> list[StepResults]:
    """Decode the requests to their ends; `fields` change their states, by ticket. Returns: the results."""
    found: list[StepResults] = []
    while left := [decode for decode in decodes if not decode.done]:
        jobs, earlier = jobs_for(left), len(found)
        states = [msgspec.structs.replace(state, **(fields or {}).get(state.ticket, {})) for state in jobs.states]
        engine.accept(msgspec.structs.replace(jobs, states=states))
        while (results := engine.iterate()) is not None:
            assert not results.failures
            read_results(results, left)
            found.append(results)
        assert len(found) > earlier, "the requests wait for ever"
    return found


def read_results(results: StepResults, decodes: list[Decode]) -> list[Decode]:
    """Apply the results. Returns: the requests with a result, in the order of the message."""
    by_ticket = {d.ticket: d for d in decodes}
    ran = [by_ticket[t] for t in unpack_int64(results.tickets).tolist()]
    counts = unpack_int32(results.counts)
    cuts = np.cumsum(counts)[:-1]
    columns = (
        np.split(unpack_int32(results.positions), cuts),
        np.split(unpack_int32(results.tokens), cuts),
        np.split(unpack_float32(results.confidences), cuts),
        unpack_float32(results.confidence_stats).reshape(-1, 5),
    )
    for decode, positions, tokens, confidences, stats in zip(ran, *columns, strict=True):
        decode.apply(positions.tolist(), tokens.tolist(), confidences.tolist(), stats.tolist())
    return ran
