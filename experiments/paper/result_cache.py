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


def cached(key: object, kind: type[T], compute: Callable[[], T], directory: Path = CACHE) -> T:
    """The stored result for the key, or else the result of `compute`, which is then stored."""
    encoded = msgspec.json.encode(key)
    file = directory / f"{hashlib.sha256(encoded).hexdigest()[:20]}.json"
    if file.exists():
        return msgspec.json.decode(msgspec.json.decode(file.read_bytes(), type=_Entry).answer, type=kind)
    result = compute()
    directory.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".part")
    partial.write_bytes(msgspec.json.encode(_Entry(msgspec.Raw(encoded), msgspec.Raw(msgspec.json.encode(result)))))
    partial.rename(file)
    return result
