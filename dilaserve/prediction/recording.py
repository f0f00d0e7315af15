"""Runs requests through the worker's engine in this process and records every step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dilaserve.prediction.training_runs import TrainingRun
from services.predictor.trajectories import Trajectory
from services.worker.engine.engine import Engine
from services.worker.engine.offline_decoder import CaseRequest, Decode, run_iterations
from shared.arrays import Int32

BATCH_REQUESTS = 32  # requests that run together


@dataclass(slots=True)
class RecordedRun:
    """The trajectories and outputs of runs, in order, and the engine's iterations and seconds."""

    trajectories: list[Trajectory] = field(default_factory=list)
    outputs: list[Int32] = field(default_factory=list)  # the tokens of each
    iterations: int = 0
    seconds: float = 0.0

    def add(self, others: "RecordedRun") -> None:
        """Add other runs."""
        self.trajectories += others.trajectories
        self.outputs += others.outputs
        self.iterations += others.iterations
        self.seconds += others.seconds


def record(engine: Engine, runs: Sequence[TrainingRun], on_done: Callable[[], object]) -> RecordedRun:
    """Run all blocks of all requests. Calls `on_done` after each request. Raises: BadInput if a request cannot run."""
    recorded = RecordedRun()
    for first in range(0, len(runs), BATCH_REQUESTS):
        group = runs[first : first + BATCH_REQUESTS]
        decodes = [_start(run, str(number)) for number, run in enumerate(group, first + 1)]
        for results, ended in run_iterations(engine, decodes):
            recorded.iterations += 1
            recorded.seconds += results.latency_s
            for _ in ended:
                on_done()
        recorded.trajectories += [_trajectory(*pair) for pair in zip(group, decodes, strict=True)]
        recorded.outputs += [decode.output for decode in decodes]
    return recorded


def _start(run: TrainingRun, request_id: str) -> Decode:
    request = CaseRequest(request_id, run.prompt.ids.tolist())
    return Decode(request, run.prompt.output_length, run.prompt.block_length, run.threshold_of)


def _trajectory(run: TrainingRun, decode: Decode) -> Trajectory:
    return Trajectory(
        block_length=decode.block_length,
        thresholds=np.array([decode.threshold_of(step) for step in range(len(decode.steps))]),
        unmasked=np.array([len(step.tokens) for step in decode.steps], dtype=np.int32),
        confidence_stats=np.array(decode.confidence_stats, dtype=np.float32),
        block_offset=run.prompt.block_offset,
    )
