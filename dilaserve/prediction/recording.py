"""Runs requests through the worker's engine in this process and records every step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dilaserve.prediction.training_runs import TrainingRun
from services.predictor.trajectories import Trajectory
from services.worker.engine.engine import Engine
from shared.arrays import Float32, pack_float32, pack_int32, pack_int64, unpack_float32, unpack_int32, unpack_int64
from shared.errors import BadInput
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults

BATCH_REQUESTS = 32  # requests that run together


@dataclass(slots=True)
class RecordedRun:
    """The trajectories of runs, in order, and the engine's iterations and seconds."""

    trajectories: list[Trajectory] = field(default_factory=list)
    iterations: int = 0
    seconds: float = 0.0


def record(
    engine: Engine, mask_token_id: int, runs: Sequence[TrainingRun], on_done: Callable[[], object]
) -> RecordedRun:
    """Run all blocks of all requests. Calls `on_done` after each request.

    Raises: BadInput if a request cannot run.
    """
    recorded = RecordedRun()
    for first in range(0, len(runs), BATCH_REQUESTS):
        group = {first + i: _Running(run) for i, run in enumerate(runs[first : first + BATCH_REQUESTS])}
        engine.accept(StepJobs(epoch=0, states=[r.state(t, mask_token_id) for t, r in group.items()]))
        while active := {ticket: running for ticket, running in group.items() if running.masks_left}:
            engine.accept(_next_steps(active))
            while engine.waiting:
                recorded.seconds += _record_results(engine.iterate(), active)
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
    done: int = 0  # tokens unmasked

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


def _record_results(results: StepResults | None, active: dict[int, _Running]) -> float:
    """Record the results of an iteration. Returns: its seconds."""
    assert results is not None, "the engine has jobs"
    for failure in results.failures:
        raise BadInput(f"request {failure.ticket + 1}: {failure.message}")
    tickets = unpack_int64(results.tickets).tolist()
    counts = unpack_int32(results.counts).tolist()
    stats = unpack_float32(results.confidence_stats).reshape(-1, 5)
    for ticket, count, stat in zip(tickets, counts, stats, strict=True):
        running = active[ticket]
        running.unmasked.append(count)
        running.stats.append(stat)
        running.done += count
    return results.latency_s
