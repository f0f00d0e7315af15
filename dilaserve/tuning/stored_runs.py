"""Records training runs in parts, each stored in a file, so that an interrupted recording continues."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dilaserve.prediction.collecting import CollectedTrajectories, collect
from dilaserve.prediction.recording import RecordedRun
from dilaserve.prediction.training_runs import Prompt
from services.worker.engine.engine import Engine

PART_PROMPTS = 8


def record_parts(
    engine: Engine,
    prompts: Sequence[Prompt],
    thresholds: Sequence[float],
    directory: Path,
    on_run: Callable[[], object],
) -> CollectedTrajectories:
    """Run every prompt, except those of parts that are in `directory` already. Calls `on_run` for each run.

    Raises: BadInput if a prompt cannot run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    all_runs = CollectedTrajectories(RecordedRun(), RecordedRun())
    for number, first in enumerate(range(0, len(prompts), PART_PROMPTS)):
        path, group = directory / f"{number:04}.runs", prompts[first : first + PART_PROMPTS]
        if path.exists():
            part = DECODER.decode(path.read_bytes())
            for _ in part.trajectories:
                on_run()
        else:
            part = collect(engine, group, thresholds, number, on_run)
            draft = path.with_suffix(".draft")
            draft.write_bytes(msgspec.msgpack.encode(part, enc_hook=_packed))
            draft.replace(path)
        all_runs.add(part)
    return all_runs


def _packed(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()


def _unpacked(kind: type, packed: Any) -> Any:  # noqa: ARG001  (an array's type of elements is stored)
    dtype, shape, data = packed
    return np.frombuffer(data, dtype).reshape(shape)


DECODER = msgspec.msgpack.Decoder(CollectedTrajectories, dec_hook=_unpacked)
