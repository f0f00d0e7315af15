"""Compares this instance's weights and canary with those that the cell has recorded, and records the first ones."""

import hashlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog
from nats.js.errors import KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from services.worker.engine.self_check import Canary, CanaryFault
from shared.bus.client import Bus, until_answered
from shared.bus.codec import decode, encode
from shared.errors import BadInput
from shared.messages.models import WeightsRecord
from shared.model_files import WEIGHTS

log = structlog.get_logger(__name__)

M = TypeVar("M", bound=msgspec.Struct)
T = TypeVar("T")


def weights_digest(directory: Path) -> str:
    """SHA-256 over the names and contents of the weight files, hex. Reads at about 1 GB/s per core."""
    files = sorted(directory.glob(WEIGHTS))
    with ThreadPoolExecutor() as threads:
        digests = list(threads.map(_file_digest, files))
    lines = [f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def check_weights(bus: Bus, model: str, found: str, expected: str) -> None:
    """Compare the digest of the weights with `expected`, or if that is empty with the cell's record.

    Raises: BadInput if they differ.
    """
    key, record = f"weights.{_hash(model)}", WeightsRecord(model=model, sha256=found)
    if expected:
        if found != expected:
            raise BadInput(f"the weights have the SHA-256 {found}, not {expected}", "weights_sha256")
        await _with_records(bus, lambda records: records.put(key, encode(record)))
        return
    recorded = await _first(bus, key, record)
    if recorded.sha256 != found:
        raise BadInput(
            f"the weights of {model} are not those that this cell has served: SHA-256 {found} instead of "
            f"{recorded.sha256}. Restore the files; if they are meant to change, set DILASERVE_WEIGHTS_SHA256={found}",
            "model",
        )


async def check_canary(bus: Bus, canary: Canary, *facts: object) -> CanaryFault | None:
    """Compare the canary with that of the cell's first instance with the same `facts`. Returns: None if it is good. A
    faulty one is never the first one."""
    if fault := canary.check_alone():
        return fault
    recorded = await _first(bus, f"canary.{_hash(repr(facts))}", canary.record())
    return canary.check_against(recorded)


async def _first(bus: Bus, key: str, record: M) -> M:
    """The record of this key; `record` becomes it if there is none, or a damaged one."""

    async def first(records: KeyValue) -> M:
        try:
            await records.create(key, encode(record))
        except KeyWrongLastSequenceError:
            stored = await records.get(key)
            try:
                return decode(stored.value or b"", type(record))
            except BadInput as error:
                log.warning("damaged record of the model replaced", key=key, error=error.message)
                await records.update(key, encode(record), stored.revision)  # fails if another one has replaced it
        return record

    return await _with_records(bus, first)


async def _with_records(bus: Bus, call: Callable[[KeyValue], Awaitable[T]]) -> T:
    """Repeat `call` with the bucket of the records while the bus fails or does not answer."""
    records = await bus.bucket(bus.subjects.models_bucket)
    return await until_answered("access the records of the models", partial(call, records))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
