"""The worker as its own process on a real bus; the test sends the scheduler's messages."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from services.worker.__main__ import main
from services.worker.engine.self_check import Canary, CanaryFaultKind
from services.worker.io.model_record import check_canary
from services.worker.io.registration import startup_registration
from services.worker.model.model_runner import Runner
from services.worker.settings import WorkerSettings
from shared.arrays import pack_float32, pack_int32
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.messages.instances import Control, Instance, InstanceState
from shared.messages.models import CanaryRecord
from shared.model_files import read_model_card
from shared.profile import LatencyProfile
from shared.settings import read_settings, to_environ
from shared.tasks import during
from tests.builders import ANY_MODEL
from tests.support.golden import COPY, threshold_cases
from tests.support.leader import leading
from tests.support.nats import NatsServer, new_cell, started_server
from tests.support.random_model import random_decoder
from tests.support.running_worker import LIMIT_S, MODEL, Registrations, Results, Start
from tests.support.services import service
from tests.support.steps import Decode, jobs_for, read_results


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Restores the signal handler after a test that runs a worker in this process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


async def test_golden_cases_decode_over_the_bus_until_a_drain(
    bus: Bus, start_worker: Start, registered: Registrations
) -> None:
    """Unreadable messages are dropped; a message makes the instance draining. After SIGTERM the waiting jobs run."""
    worker = start_worker(cache="dual", instance="w7", gpus="3", max_batch_requests=1)  # the cell's cache is "none"
    instance = await registered.instance()
    assert instance.instance_id.startswith("w7-")
    assert (instance.gpus, instance.tp_degree, instance.device, instance.cache_tokens) == ([3], 1, "cpu", 0)
    assert LatencyProfile.from_csv(instance.profile).tp_degrees == [1]
    assert (await registered.instance()).heartbeat > instance.heartbeat
    cases = threshold_cases(("llada/seed1",), ("none",), COPY)[:4]
    mask_id = instance.model.mask_token_id
    decodes = [Decode(i, c.prompt, len(c.output), c.block_length, c.threshold, mask_id) for i, c in enumerate(cases)]
    results = await Results.of(bus, instance)
    subject = bus.subjects.steps(instance.instance_id)
    for garbage in (b"", b"\xff\x00", b"{", b'{"epoch": "x"}', b"\x81\xa5epoch\x01" * 3):
        await bus.nc.publish(subject, garbage)
    await bus.nc.publish(bus.subjects.control(instance.instance_id), b"\xc1")
    good = jobs_for(decodes)
    await bus.publish(subject, type(good)(epoch=1, tickets=b"123"))
    await bus.publish(subject, good)
    while not all(d.done for d in decodes):
        ran = read_results(await results.next(), decodes)
        await bus.publish(subject, jobs_for([d for d in ran if not d.done], drops=[d.ticket for d in ran if d.done]))
    assert [d.output.tolist() for d in decodes] == [case.output for case in cases]
    assert [d.trace for d in decodes] == [case.block_steps for case in cases]
    await bus.publish(bus.subjects.control(instance.instance_id), Control(action="drain", within_s=5.0))
    draining = await registered.instance(InstanceState.DRAINING)
    assert (draining.drain_s, draining.draining_s < LIMIT_S) == (5.0, True)
    late = [Decode(10 + i, [1, 2, 3], 32, 32, 0.9, mask_id) for i in range(8)]
    await bus.publish(subject, jobs_for(late))
    ran = read_results(await results.next(), late)
    worker.send_signal(signal.SIGTERM)
    while len(ran) < len(late):
        ran += read_results(await results.next(), late)
    assert await registered.next(lambda change: isinstance(change, str)) == instance.instance_id
    assert await asyncio.to_thread(worker.wait, LIMIT_S) == 0


async def test_an_instance_is_registered_as_starting_while_its_model_loads(
    nats_server: NatsServer, bus: Bus, registered: Registrations, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    own = {"nats_url": nats_server.url, "cell": bus.subjects.cell, "alive_file": alive}
    settings = read_settings(WorkerSettings, to_environ(own))
    instance = Instance(instance_id="w-1", model=read_model_card(MODEL, "m"), tp_degree=1)
    with startup_registration(settings, instance):
        starting = await registered.instance(InstanceState.STARTING)
        assert alive.exists()  # for health checks while the model loads
    assert starting.instance_id == "w-1"


@pytest.mark.slow
@pytest.mark.parametrize("rank_dies", [False, True])
async def test_an_instance_ends_with_its_ranks(start_worker: Start, registered: Registrations, rank_dies: bool) -> None:
    worker = start_worker(tp=2)
    assert (await registered.instance()).tp_degree == 2
    [rank] = _ranks(worker.pid)
    if rank_dies:
        os.kill(rank, signal.SIGKILL)
        assert await asyncio.to_thread(worker.wait, LIMIT_S) == 1
    else:
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, LIMIT_S) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)


def _ranks(pid: int) -> list[int]:
    """The process ids of the ranks that this process started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


@pytest.mark.slow
async def test_a_worker_survives_a_restart_of_the_bus(tmp_path: Path) -> None:
    settings = {"cell": "restart", "threads": 1, "model": MODEL}
    with (
        started_server(tmp_path) as server,
        service("worker", settings | {"nats_url": server.url}, tmp_path / "worker.log"),
    ):
        async with new_cell(server, "restart") as bus, leading(bus, ANY_MODEL):
            instance = await _first_instance(bus)
        server.stop(kill=True)
        server.start()
        async with new_cell(server, "restart") as bus:
            again = await _first_instance(bus)
            assert again.instance_id == instance.instance_id
            results = await Results.of(bus, instance)
            decode = Decode(1, [1, 2, 3], 32, 32, 0.9, instance.model.mask_token_id)
            await bus.publish(bus.subjects.steps(instance.instance_id), jobs_for([decode]))
            assert read_results(await results.next(), [decode]) == [decode]


async def _first_instance(bus: Bus) -> Instance:
    watcher = Registrations(bus)
    async with during(watcher.watch()):
        return await watcher.instance()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"model": "/nowhere"}, "no model in /nowhere"),
        ({"max_batch_tokens": 0}, "DILASERVE_MAX_BATCH_TOKENS='0'"),
        ({"device": "tpu"}, "DILASERVE_DEVICE='tpu'"),
        ({"device": "cuda"}, "device=cuda"),
        ({"tp": 3}, "degree 3 does not divide the model's 8 heads"),
        ({"profile": "/nowhere.csv"}, "cannot read the latency profile /nowhere.csv"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(
    settings: dict[str, object], complaint: str, own_signals: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(to_environ({"model": MODEL, **settings})) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line


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
