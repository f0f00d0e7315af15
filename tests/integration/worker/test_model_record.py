"""The cell's record of the canary: what is recorded, and what becomes of a damaged record."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from services.worker.engine.self_check import Canary, CanaryFaultKind
from services.worker.io.model_record import check_canary
from services.worker.model.model_runner import Runner
from shared.arrays import pack_float32, pack_int32
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.messages.models import CanaryRecord
from tests.support.random_model import random_decoder


@pytest.fixture(scope="module")
def canary() -> Canary:
    return Canary.measure(Runner(random_decoder()))


def not_finite(canary: Canary) -> Canary:
    confidences = canary.expected.confidences.copy()
    confidences[0] = np.nan
    return replace(canary, expected=replace(canary.expected, confidences=confidences))


def garbage(canary: Canary) -> Canary:
    return replace(canary, expected=replace(canary.expected, tokens=canary.expected.tokens + 1))


async def test_a_first_canary_that_is_not_finite_is_not_recorded(bus: Bus, canary: Canary) -> None:
    fault = await check_canary(bus, not_finite(canary), "model")
    assert fault is not None
    assert fault.kind is CanaryFaultKind.NOT_FINITE
    assert await check_canary(bus, canary, "model") is None
    fault = await check_canary(bus, garbage(canary), "model")
    assert fault is not None
    assert fault.kind is CanaryFaultKind.UNLIKE_OTHERS


@pytest.mark.parametrize(
    ("tokens", "confidences", "reason"),
    [
        (b"\0" * 5, b"\0" * 8, "5 and 8 bytes"),
        (b"\0" * 8, b"\0" * 7, "8 and 7 bytes"),
        (b"\0" * 5, b"\0" * 5, "5 and 5 bytes"),
        (b"", b"", "0 and 0 bytes"),
        (pack_int32([3]), pack_float32([np.nan]), "a confidence is not finite"),
        (pack_int32([3]), pack_float32([np.inf]), "a confidence is not finite"),
        (b"", None, "Expected `bytes`"),
    ],
    ids=["odd tokens", "odd confidences", "both odd", "empty", "nan", "inf", "undecodable"],
)
async def test_a_damaged_record_is_logged_and_replaced(
    bus: Bus, canary: Canary, tokens: bytes, confidences: bytes | None, reason: str
) -> None:
    await check_canary(bus, canary, "model")
    records = await bus.bucket(bus.subjects.models_bucket)
    [key] = await records.keys()
    await records.put(key, msgspec.msgpack.encode({"tokens": tokens, "confidences": confidences}))
    with capture_logs() as logs:
        assert await check_canary(bus, canary, "model") is None
    [line] = logs
    assert line["event"] == "damaged record of the model replaced"
    assert reason in line["error"]
    assert decode((await records.get(key)).value or b"", CanaryRecord) == canary.record()
    assert await check_canary(bus, garbage(canary), "model") is not None
