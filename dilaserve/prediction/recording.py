"""Runs requests through the worker's engine in this process and records how each step went."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dilaserve.prediction.training_runs import TrainingRun
from services.predictor.trajectories import Trajectory
from services.worker.engine.engine import Engine
from shared.arrays import (
    Float32,
    pack_float32,
    pack_int32,
    pack_int64,
    unpack_float32,
    unpack_int32,
    unpack_int64,
)
from shared.errors import BadInput
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults

TOGETHER = 32  # requests run at a time


@dataclass(slots=True)
class RecordedRun:
    """What came of runs, in their order, and what it took: iterations of the engine, and seconds in them."""

    trajectories: list[Trajectory] = field(default_factory=list)
    iterations: int = 0
    seconds: float = 0.0


def record(
    engine: Engine, mask_token_id: int, runs: Sequence[TrainingRun], on_done: Callable[[], object]
) -> RecordedRun:
    """Run all to their end, every block of them. Calls `on_done` as each ends.

    Raises: BadInput if a request cannot be run.
    """
    recorded = RecordedRun()
    for first in range(0, len(runs), TOGETHER):
        group = {first + i: _Running(run) for i, run in enumerate(runs[first : first + TOGETHER])}
        engine.accept(StepJobs(epoch=0, states=[r.state(t, mask_token_id) for t, r in group.items()]))
        while active := {ticket: running for ticket, running in group.items() if running.masks_left}:
            engine.accept(_next_steps(active))
            while engine.waiting:
                recorded.seconds += _take(engine.iterate(), active)
                recorded.iterations += 1
            for _ in range(sum(not running.masks_left for running in active.values())):
                on_done()
        engine.accept(StepJobs(epoch=0, drops=pack_int64(list(group))))
        recorded.trajectories += [running.trajectory() for running in group.values()]
    return recorded


@dataclass(slots=True)
class _Running:
    run: TrainingRun
    unmasked: list[int] = field(default_factory=list)
    stats: list[Float32] = field(default_factory=list)
    done: int = 0  # tokens

    @property
    def masks_left(self) -> int:
        return self.run.prompt.output_length - self.done

    @property
    def step(self) -> int:
        return len(self.unmasked)

    @property
    def block(self) -> int:
        return self.done // self.run.prompt.block_length

    @property
    def kind(self) -> StepKind:
        return StepKind.CACHE if self.done % self.run.prompt.block_length else StepKind.RECOMPUTE

    def state(self, ticket: int, mask_token_id: int) -> RequestState:
        prompt = self.run.prompt
        canvas = np.append(prompt.ids, np.full(prompt.output_length, mask_token_id))
        return RequestState(
            ticket=ticket,
            request_id=str(ticket),
            prompt_length=len(prompt.ids),
            block_length=prompt.block_length,
            canvas=pack_int32(canvas),
        )

    def trajectory(self) -> Trajectory:
        return Trajectory(
            block_length=self.run.prompt.block_length,
            thresholds=np.array([self.run.threshold_of(step) for step in range(self.step)]),
            unmasked=np.array(self.unmasked, dtype=np.int32),
            confidence_stats=np.array(self.stats, dtype=np.float32),
        )


def _next_steps(active: dict[int, _Running]) -> StepJobs:
    running = active.values()
    return StepJobs(
        epoch=0,
        tickets=pack_int64(list(active)),
        steps=pack_int32([r.step for r in running]),
        blocks=pack_int32([r.block for r in running]),
        thresholds=pack_float32([r.run.threshold_of(r.step) for r in running]),
        kinds=pack_int32([r.kind for r in running]),
    )


def _take(results: StepResults | None, active: dict[int, _Running]) -> float:
    """Write down what an iteration did; returns how many seconds it took."""
    assert results is not None, "there were jobs to run"
    for failure in results.failures:
        raise BadInput(f"request {failure.ticket + 1}: {failure.message}")
    tickets = unpack_int64(results.tickets).tolist()
    counts = unpack_int32(results.counts).tolist()
    stats = unpack_float32(results.confidence_stats).reshape(-1, 5)
    for ticket, count, told in zip(tickets, counts, stats, strict=True):
        running = active[ticket]
        running.unmasked.append(count)
        running.stats.append(told)
        running.done += count
    return results.latency_s
