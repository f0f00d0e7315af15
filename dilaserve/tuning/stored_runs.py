"""Records training runs in parts, each stored in a file, so that an interrupted recording continues."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from dilaserve.prediction.collecting import collect
from dilaserve.prediction.recording import RecordedRun
from dilaserve.prediction.training_runs import Prompt
from services.predictor.trajectories import Trajectory
from services.worker.engine.engine import Engine
from shared.arrays import Int32, pack_float32, pack_int32, unpack_float32, unpack_int32

PART_PROMPTS = 8
NUM_STATS = 5  # columns of the confidence statistics


class _Run(msgspec.Struct, frozen=True):
    block_length: int
    block_offset: int
    thresholds: list[float]
    unmasked: bytes  # int32
    stats: bytes  # float32
    output: bytes  # int32


class _Part(msgspec.Struct, frozen=True):
    """The runs of some prompts."""

    fixed: list[_Run]
    changing: list[_Run]


@dataclass(slots=True)
class StoredRuns:
    """All runs of some prompts. `fixed` and `outputs`: each prompt at every threshold, in order."""

    fixed: RecordedRun = field(default_factory=RecordedRun)
    changing: list[Trajectory] = field(default_factory=list)

    @property
    def outputs(self) -> list[Int32]:
        return self.fixed.outputs


def record_parts(
    engine: Engine,
    mask_token_id: int,
    prompts: Sequence[Prompt],
    thresholds: Sequence[float],
    directory: Path,
    on_run: Callable[[], object],
) -> StoredRuns:
    """Run every prompt, except those of parts that are in `directory` already. Calls `on_run` for each run.

    Raises: BadInput if a prompt cannot run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    runs = StoredRuns()
    for number, first in enumerate(range(0, len(prompts), PART_PROMPTS)):
        path, group = directory / f"{number:04}.msgpack", prompts[first : first + PART_PROMPTS]
        if path.exists():
            part = msgspec.msgpack.decode(path.read_bytes(), type=_Part)
            for _ in (*part.fixed, *part.changing):
                on_run()
        else:
            part = _record(engine, mask_token_id, group, thresholds, number, on_run)
            draft = path.with_suffix(".draft")
            draft.write_bytes(msgspec.msgpack.encode(part))
            draft.replace(path)
        runs.fixed.trajectories += map(_trajectory, part.fixed)
        runs.fixed.outputs += [unpack_int32(run.output) for run in part.fixed]
        runs.changing += map(_trajectory, part.changing)
    return runs


def _record(
    engine: Engine,
    mask_token_id: int,
    prompts: Sequence[Prompt],
    thresholds: Sequence[float],
    seed: int,
    on_run: Callable[[], object],
) -> _Part:
    found = collect(engine, mask_token_id, prompts, thresholds, seed, on_run)
    return _Part(list(_stored(found.fixed)), list(_stored(found.changing)))


def _stored(recorded: RecordedRun) -> Iterator[_Run]:
    for run, output in zip(recorded.trajectories, recorded.outputs, strict=True):
        stats, unmasked = pack_float32(run.confidence_stats), pack_int32(run.unmasked)
        yield _Run(run.block_length, run.block_offset, run.thresholds.tolist(), unmasked, stats, pack_int32(output))


def _trajectory(run: _Run) -> Trajectory:
    stats = unpack_float32(run.stats).reshape(-1, NUM_STATS)
    thresholds, unmasked = np.array(run.thresholds), unpack_int32(run.unmasked)
    return Trajectory(run.block_length, thresholds, unmasked, stats, run.block_offset)
