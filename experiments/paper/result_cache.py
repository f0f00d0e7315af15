"""A cache of slow results in files, by the JSON of what identifies them."""

import hashlib
import os
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
    cpu_s: float = 0.0  # that the result took


_used_cpu_s = [0.0]


def used_cpu_s() -> float:
    """CPU seconds that all results took which this process computed or read."""
    return sum(_used_cpu_s)


def cached(key: object, kind: type[T], compute: Callable[[], T], directory: Path = CACHE) -> T:
    """The stored result for the key, or else the result of `compute`, which is then stored."""
    encoded = msgspec.json.encode(key)
    file = directory / f"{hashlib.sha256(encoded).hexdigest()[:20]}.json"
    if file.exists():
        entry = msgspec.json.decode(file.read_bytes(), type=_Entry)
        _used_cpu_s.append(entry.cpu_s)
        return msgspec.json.decode(entry.answer, type=kind)
    start_s = _cpu_s()
    result = compute()
    cpu_s = _cpu_s() - start_s
    _used_cpu_s.append(cpu_s)
    directory.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".part")
    entry = _Entry(msgspec.Raw(encoded), msgspec.Raw(msgspec.json.encode(result)), cpu_s)
    partial.write_bytes(msgspec.json.encode(entry))
    partial.rename(file)
    return result


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that ended, such as the solver."""
    return sum(os.times()[:4])
