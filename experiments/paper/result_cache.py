"""What took long is kept: the same question is not computed again."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from experiments.paper.files import ROOT

KEPT = ROOT / "build" / "paper"  # delete it to compute all anew, as after a change to the simulator or the scheduler
T = TypeVar("T")


class _Entry(msgspec.Struct):
    question: msgspec.Raw
    answer: msgspec.Raw


def kept(question: object, kind: type[T], compute: Callable[[], T], directory: Path = KEPT) -> T:
    """The answer to the question, which JSON can tell from all others: the one kept, or one computed and then kept."""
    asked = msgspec.json.encode(question)
    file = directory / f"{hashlib.sha256(asked).hexdigest()[:20]}.json"
    if file.exists():
        return msgspec.json.decode(msgspec.json.decode(file.read_bytes(), type=_Entry).answer, type=kind)
    answer = compute()
    directory.mkdir(parents=True, exist_ok=True)
    partly = file.with_suffix(".part")
    partly.write_bytes(msgspec.json.encode(_Entry(msgspec.Raw(asked), msgspec.Raw(msgspec.json.encode(answer)))))
    partly.rename(file)
    return answer
