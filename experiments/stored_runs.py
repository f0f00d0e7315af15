"""The runs of an experiment so far in a JSON file, so that it can be interrupted."""

from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_runs(path: Path, kind: type[T]) -> T | None:
    """The stored runs; None if there are none, or of an earlier form."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.ValidationError:
        return None


def write_runs(path: Path, runs: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(runs) + b"\n")
