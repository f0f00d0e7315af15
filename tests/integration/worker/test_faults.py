"""A worker that hangs, computes wrong, or has damaged weights."""

import asyncio
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from services.worker import service as worker_service
from services.worker.__main__ import main
from services.worker.engine import batch_limit
from services.worker.engine.self_check import SEQUENCES
from services.worker.io.model_record import check_weights, weights_digest
from services.worker.model.decoder import PackedDecoder
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import Runner, TokenPredictions
from services.worker.monitoring import watchdog
from shared.bus.client import Bus
from shared.errors import BadInput
from shared.messages.instances import Instance, InstanceState
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile, write_profile
from shared.settings import to_environ
from tests.builders import ANY_MODEL
from tests.support.leader import leading
from tests.support.nats import NatsServer
from tests.support.running_worker import LIMIT_S, MODEL, Registrations, Results, Start
from tests.support.steps import Decode, jobs_for, read_results

NORMAL_TOKENS = 8192  # the default of max_batch_tokens

Fault = Callable[[dict[str, str]], None]
StartFaulty = Callable[[Fault], AbstractContextManager[SpawnProcess]]


@pytest.fixture
async def faulty_worker(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[StartFaulty]:
    """Starts a worker in a process of its own, whose main function injects the fault."""
    profile = tmp_path / "profile.csv"
    write_profile(profile, LatencyProfile.from_rows([(1, 32, StepKind.RECOMPUTE, 0.01)]))
    settings = {"nats_url": nats_server.url, "cell": bus.subjects.cell, "threads": 1, "model": MODEL}
    environ = to_environ({**settings, "profile": profile, "canary_interval_s": 1e-6})

    @contextmanager
    def start(fault: Fault) -> Iterator[SpawnProcess]:
        worker = multiprocessing.get_context("spawn").Process(target=fault, args=(environ,))
        worker.start()
        try:
            yield worker
        finally:
            worker.kill()

    async with leading(bus, ANY_MODEL):
        yield start


async def run_a_step(bus: Bus, instance: Instance) -> None:
    decode = Decode(1, [1, 2, 3], 32, 32, 0.9, instance.model.mask_token_id)
    await bus.publish(bus.subjects.steps(instance.instance_id), jobs_for([decode]))


def is_canary(batch: ForwardBatch) -> bool:
    """The other batches of these tests have one request."""
    return len(batch.lengths) == SEQUENCES


@pytest.mark.slow
async def test_an_iteration_that_hangs_ends_the_instance(
    bus: Bus, registered: Registrations, faulty_worker: StartFaulty
) -> None:
    with faulty_worker(_hang) as worker:
        instance = await registered.instance()
        await run_a_step(bus, instance)
        assert await registered.next(lambda change: isinstance(change, str)) == instance.instance_id
        await asyncio.to_thread(worker.join, LIMIT_S)
        assert worker.exitcode == 1


def _hang(environ: dict[str, str]) -> None:
    run = Runner.run

    def hang(runner: Runner, batch: ForwardBatch) -> object:
        return run(runner, batch) if is_canary(batch) else threading.Event().wait()

    with (
        patch.object(Runner, "run", hang),
        patch.object(watchdog, "LIMIT_STEPS", 0),
        patch.object(watchdog, "MIN_LIMIT_S", 2.0),
    ):
        sys.exit(main(environ))


@pytest.mark.slow
async def test_an_instance_that_begins_to_compute_wrong_is_quarantined(
    bus: Bus, registered: Registrations, faulty_worker: StartFaulty
) -> None:
    with faulty_worker(_garbage) as worker:
        instance = await registered.instance()
        results = await Results.of(bus, instance)
        await run_a_step(bus, instance)
        quarantined = await registered.instance(InstanceState.QUARANTINED)
        assert "its canary differs from its own earlier one" in quarantined.quarantine
        assert quarantined.unverified_s > 0
        assert results.is_empty
        assert await registered.next(lambda change: isinstance(change, str)) == instance.instance_id
        await asyncio.to_thread(worker.join, LIMIT_S)
        assert worker.exitcode == 1


def _garbage(environ: dict[str, str], *, ran: bool = False) -> None:
    """The device computes wrong from the first iteration on; `ran`: from the start on."""
    run = Runner.run

    def wrong(runner: Runner, batch: ForwardBatch) -> TokenPredictions:
        nonlocal ran
        ran = ran or not is_canary(batch)
        found = run(runner, batch)
        return replace(found, tokens=(found.tokens + ran) % runner.config.vocab_size)

    with patch.object(Runner, "run", wrong), patch.object(worker_service, "QUARANTINE_S", 0.5):
        sys.exit(main(environ))


@pytest.mark.slow
async def test_an_instance_that_computes_unlike_others_never_serves(
    start_worker: Start, registered: Registrations, faulty_worker: StartFaulty
) -> None:
    start_worker(dtype="auto")
    await registered.instance()
    with faulty_worker(partial(_garbage, ran=True)):
        quarantined = await registered.instance(InstanceState.QUARANTINED)
        assert "that of other instances" in quarantined.quarantine


@pytest.mark.slow
async def test_after_an_out_of_memory_error_the_registered_limit_falls_and_recovers(
    bus: Bus, registered: Registrations, faulty_worker: StartFaulty
) -> None:
    def limited(is_low: bool) -> Callable[[Instance | str], bool]:
        return lambda change: isinstance(change, Instance) and (change.max_batch_tokens < NORMAL_TOKENS) == is_low

    with faulty_worker(_short_of_memory_once) as worker:
        instance = await registered.instance()
        assert instance.max_batch_tokens == NORMAL_TOKENS
        results = await Results.of(bus, instance)
        decodes = [Decode(ticket, [1, 2, 3], 32, 32, 1.0, instance.model.mask_token_id) for ticket in range(4)]
        for step in range(20):
            await bus.publish(bus.subjects.steps(instance.instance_id), jobs_for(decodes))
            waiting = list(decodes)
            while waiting:
                ran = read_results(await results.next(), waiting)
                waiting = [decode for decode in waiting if decode not in ran]
            if step == 0:
                await registered.next(limited(True))
        await registered.next(limited(False))
        assert worker.is_alive()


def _short_of_memory_once(environ: dict[str, str]) -> None:
    forward, errors = PackedDecoder.forward, 0

    def fail(decoder: PackedDecoder, tokens: Tensor, *rest: Any) -> Tensor:
        nonlocal errors
        if errors == 0 and len(tokens) > 4 * 32:
            errors += 1
            raise torch.OutOfMemoryError("too large")
        return forward(decoder, tokens, *rest)

    with patch.object(PackedDecoder, "forward", fail), patch.object(batch_limit, "MIN_ITERATIONS", 2):
        sys.exit(main(environ))


@pytest.mark.slow
async def test_steps_that_cross_the_announcement_of_a_drain_are_run(
    bus: Bus, registered: Registrations, faulty_worker: StartFaulty
) -> None:
    with faulty_worker(_patient) as worker:
        instance = await registered.instance()
        results = await Results.of(bus, instance)
        await run_a_step(bus, instance)
        await results.next()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGTERM)
        await registered.instance(InstanceState.DRAINING)
        subject = bus.subjects.steps(instance.instance_id)
        late = Decode(2, [1, 2, 3], 32, 32, 0.9, instance.model.mask_token_id)
        await bus.publish(subject, jobs_for([late]))
        assert read_results(await results.next(), [late]) == [late]
        await registered.instance(InstanceState.DRAINING)  # renewed meanwhile
        await bus.publish(subject, jobs_for([], drops=[1, 2]))
        assert await registered.next(lambda change: isinstance(change, str)) == instance.instance_id
        await asyncio.to_thread(worker.join, LIMIT_S)
        assert worker.exitcode == 0


def _patient(environ: dict[str, str]) -> None:
    """The scheduler has any time to take the requests away."""
    with patch.object(worker_service, "MAX_LEAVE_S", 10 * LIMIT_S):
        sys.exit(main(environ))


@pytest.mark.slow
async def test_damaged_weights_are_refused_with_both_checksums(
    bus: Bus, start_worker: Start, registered: Registrations, tmp_path: Path
) -> None:
    model = shutil.copytree(MODEL, tmp_path / "model")
    served = weights_digest(model)
    await check_weights(bus, model.name, served, "")  # as an earlier instance of the cell
    weights = next(model.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-8] + bytes(8))
    damaged = start_worker(model=model)
    assert await asyncio.to_thread(damaged.wait, LIMIT_S) == 2
    log, found = (tmp_path / "worker.log").read_text(), weights_digest(model)
    assert f"are not those that this cell has served: SHA-256 {found} instead of {served}" in log
    start_worker(model=model, weights_sha256=found)
    await registered.instance()
    await check_weights(bus, model.name, found, "")  # they are those of the cell now
    with pytest.raises(BadInput):
        await check_weights(bus, model.name, served, "")
