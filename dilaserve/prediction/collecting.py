"""Collects the trajectories for training and testing a step predictor."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dilaserve.prediction.recording import RecordedRun, record
from dilaserve.prediction.training_runs import Prompt, changing_runs, fixed_runs
from services.predictor.trajectories import Trajectory
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.model.model_loading import NO_CACHE, CacheSize, ModelChoice, open_runner
from shared.errors import BadInput

LIMITS = EngineLimits(tokens=8192, requests=64)
MAX_HELD_OUT_SHARE = 0.2  # of all prompts


@dataclass(frozen=True, slots=True)
class CollectedTrajectories:
    """Runs of each request at every threshold, from its start and after threshold changes."""

    fixed: RecordedRun
    changing: RecordedRun

    @property
    def trajectories(self) -> list[Trajectory]:
        return self.fixed.trajectories + self.changing.trajectories

    def add(self, others: "CollectedTrajectories") -> None:
        """Add runs of other requests."""
        self.fixed.add(others.fixed)
        self.changing.add(others.changing)


@contextmanager
def open_engine(
    model: Path, cache: str, threads: int, *, device: str = "auto", dtype: str = "auto"
) -> Iterator[Engine]:
    """The worker's engine; `threads`: on a CPU, 0 for all cores.

    Raises: BadInput if the model cannot run.
    """
    room = NO_CACHE if cache == CacheMode.NONE else CacheSize(LIMITS.requests)
    with open_runner(ModelChoice(str(model), device=device, dtype=dtype, threads=threads), room) as runner:
        yield Engine(runner, CacheMode(cache), LIMITS, "in-process")


def split(prompts: Sequence[Prompt], training: int, held_out: int) -> tuple[list[Prompt], list[Prompt]]:
    """At most `training` prompts for training, and at most `held_out` others for testing.

    Raises: BadInput if there are too few prompts.
    """
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
