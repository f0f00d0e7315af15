"""Runs requests through the worker's engine in this process, and collects their trajectories for a step predictor."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dilaserve.prediction.training_runs import Prompt, TrainingRun, changing_runs, fixed_runs
from services.predictor.trajectories import Trajectory
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.offline_decoder import CaseRequest, Decode, run_iterations
from services.worker.model.model_loading import NO_CACHE, CacheSize, ModelChoice, open_runner
from shared.arrays import Int32
from shared.errors import BadInput

LIMITS = EngineLimits(tokens=8192, requests=64)
MAX_HELD_OUT_SHARE = 0.2  # of all prompts
BATCH_REQUESTS = 32  # requests that run together


@dataclass(slots=True)
class RecordedRun:
    """The trajectories and outputs of runs, in order, and the engine's iterations and seconds."""

    trajectories: list[Trajectory] = field(default_factory=list)
    outputs: list[Int32] = field(default_factory=list)  # the tokens of each
    iterations: int = 0
    seconds: float = 0.0

    def add(self, others: "RecordedRun") -> None:
        self.trajectories += others.trajectories
        self.outputs += others.outputs
        self.iterations += others.iterations
        self.seconds += others.seconds


@dataclass(frozen=True, slots=True)
class CollectedTrajectories:
    """Runs of each request at every threshold, from its start and after threshold changes."""

    fixed: RecordedRun
    changing: RecordedRun

    @property
    def trajectories(self) -> list[Trajectory]:
        return self.fixed.trajectories + self.changing.trajectories

    def add(self, others: "CollectedTrajectories") -> None:
        self.fixed.add(others.fixed)
        self.changing.add(others.changing)


@contextmanager
def open_engine(
    model: Path, cache: str, threads: int, *, device: str = "auto", dtype: str = "auto"
) -> Iterator[Engine]:
    """The worker's engine; `threads`: on a CPU, 0 for all cores. Raises: BadInput if the model cannot run."""
    room = NO_CACHE if cache == CacheMode.NONE else CacheSize(LIMITS.requests)
    with open_runner(ModelChoice(str(model), device=device, dtype=dtype, threads=threads), room) as runner:
        yield Engine(runner, CacheMode(cache), LIMITS, "in-process")


def split(prompts: Sequence[Prompt], training: int, held_out: int) -> tuple[list[Prompt], list[Prompt]]:
    """At most `training` prompts to train with and `held_out` others to test. Raises: BadInput if there are too few."""
    held_out = min(held_out, round(MAX_HELD_OUT_SHARE * len(prompts)))
    if not held_out:
        raise BadInput(f"--prompts has {len(prompts)} rows; accepted: at least 3, better 150")
    training = min(training, len(prompts) - held_out)
    return list(prompts[:training]), list(prompts[training : training + held_out])


def num_runs(prompts: Sequence[Prompt], thresholds: Sequence[float]) -> int:
    """The number of runs in `collect`."""
    return 2 * len(prompts) * len(thresholds)


def collect(
    engine: Engine, prompts: Sequence[Prompt], thresholds: Sequence[float], seed: int, on_done: Callable[[], object]
) -> CollectedTrajectories:
    """Run every prompt; call `on_done` after each run. Raises: BadInput if one cannot run."""
    fixed = record(engine, fixed_runs(prompts, thresholds), on_done)
    steps = float(np.mean([trajectory.num_steps for trajectory in fixed.trajectories]))
    random = np.random.default_rng(seed)
    changing = record(engine, changing_runs(prompts, thresholds, steps, random), on_done)
    return CollectedTrajectories(fixed, changing)


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
