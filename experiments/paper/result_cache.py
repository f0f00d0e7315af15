"""A cache of slow results in files, by the JSON of what identifies them."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from experiments.paper.files import ROOT

CACHE = ROOT / "build" / "paper"  # delete it to compute all again, as after a change to the simulator or the scheduler
T = TypeVar("T")


class _Entry(msgspec.Struct):
    question: msgspec.Raw
    answer: msgspec.Raw


def cached(key: object, kind: type[T], compute: Callable[[], T], directory: Path = CACHE, *, again: bool = False) -> T:
    """The stored result for the key, or else the result of `compute`, which is then stored; `again`: compute anyway."""
    found = None if again else stored(key, kind, directory)
    if found is not None:
        return found
    result, file = compute(), _file(key, directory)
    directory.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".part")
    encoded = msgspec.Raw(msgspec.json.encode(key))
    partial.write_bytes(msgspec.json.encode(_Entry(encoded, msgspec.Raw(msgspec.json.encode(result)))))
    partial.rename(file)
    return result


def stored(key: object, kind: type[T], directory: Path = CACHE) -> T | None:
    """The stored result for the key; None if there is none."""
    file = _file(key, directory)
    if not file.exists():
        return None
    return msgspec.json.decode(msgspec.json.decode(file.read_bytes(), type=_Entry).answer, type=kind)


def _file(key: object, directory: Path) -> Path:
    return directory / f"{hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:20]}.json"
