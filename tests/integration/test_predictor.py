"""The predictor as its own process on the real bus."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import nats.errors
import numpy as np
import pytest

from services.predictor.metrics import PredictorMetrics
from services.predictor.model import StepPredictor, load_predictor
from services.predictor.queries import Query
from services.predictor.service import PredictorService
from shared.arrays import Float32, pack_float32, pack_int32, unpack_float32
from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.messages.predict import PredictSteps, StepsLeft
from tests.support.nats import NatsServer
from tests.support.services import service, stop
from tests.support.trajectories import THRESHOLDS, random_trajectory, write_predictor
from tests.support.waiting import reached, until

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_predictor(tmp_path_factory.mktemp("predictor"))


@pytest.fixture
async def settings(bus: Bus, nats_server: NatsServer, directory: Path) -> Mapping[str, object]:
    return {"nats_url": nats_server.url, "cell": bus.subjects.cell, "predictor": directory}


def question(seed: int) -> PredictSteps:
    states = random_trajectory(seed, (), 0.7).states()
    return PredictSteps(
        features=pack_float32(states.features),
        thresholds=pack_float32(THRESHOLDS),
        masks_left=pack_int32(states.masks_left),
        blocks_left=pack_int32(states.blocks_left),
    )


async def ask(bus: Bus, message: PredictSteps, within_s: float = LIMIT_S) -> StepsLeft:
    return decode((await bus.nc.request(bus.subjects.predict, encode(message), timeout=within_s)).data, StepsLeft)


async def answers(bus: Bus) -> bool:
    try:
        await ask(bus, question(0), within_s=1)
    except (nats.errors.NoRespondersError, TimeoutError):
        return False
    return True


async def test_replies_among_garbage_have_the_steps_left_per_request_and_threshold(
    bus: Bus, settings: Mapping[str, object], directory: Path, tmp_path: Path
) -> None:
    """Also those to queries that were delivered before SIGTERM."""
    (predictor, card), log = load_predictor(directory), tmp_path / "log"
    with service("predictor", settings, log) as process:
        await until(lambda: answers(bus))
        impossible = PredictSteps(features=b"123", thresholds=b"", masks_left=b"", blocks_left=b"")
        for garbage in (b"", b"\x00garbage", b"{", b"[1,2]", b"\xc1" * 100, encode(impossible)):
            await bus.nc.publish(bus.subjects.predict, garbage, reply=bus.nc.new_inbox())
        await bus.nc.publish(bus.subjects.predict, encode(question(1)))  # without a reply subject
        replies = await asyncio.gather(*[ask(bus, question(seed)) for seed in range(50)])
        inbox = bus.nc.new_inbox()
        last = await bus.nc.subscribe(inbox)
        for seed in range(100):
            await bus.nc.publish(bus.subjects.predict, encode(question(seed)), reply=inbox)
        await bus.nc.flush()
        assert stop(process) == 0
        for _ in range(100):
            await last.next_msg(timeout=LIMIT_S)
    for seed, reply in enumerate(replies):
        states = random_trajectory(seed, (), 0.7).states()
        [expected] = predictor.steps_left([replace(states, thresholds=np.array(THRESHOLDS, dtype=np.float32))])
        np.testing.assert_array_equal(unpack_float32(reply.steps_left).reshape(expected.shape), expected)
        assert reply.predictor == card.version
    assert log.read_text().count("dropped") == 6
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
async def test_two_predictors_share_the_work_and_a_kill_loses_only_held_queries(
    bus: Bus, settings: Mapping[str, object], tmp_path: Path
) -> None:
    other = write_predictor(tmp_path / "other", requests=20)  # another version, which its answers show
    answered: Counter[str] = Counter()
    lost = 0

    async def ask_on() -> None:
        nonlocal lost
        while True:
            try:
                answered[(await ask(bus, question(1), within_s=5)).predictor] += 1
            except (TimeoutError, nats.errors.NoRespondersError):
                lost += 1

    with (
        service("predictor", settings, tmp_path / "log1") as first,
        service("predictor", {**settings, "predictor": other}, tmp_path / "log2"),
    ):
        await until(lambda: answers(bus))
        asking = [asyncio.ensure_future(ask_on()) for _ in range(4)]
        await reached(lambda: len(answered) == 2 and min(answered.values()) > 10)
        lost = 0
        first.kill()
        first.wait()
        answered.clear()
        await reached(lambda: answered.total() >= 50)
        for task in asking:
            task.cancel()
    assert lost <= len(asking), "at most one query of each client"


async def test_without_a_predictor_of_the_model_it_waits_until_it_is_stopped(
    settings: Mapping[str, object], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with service("predictor", {**settings, "predictor": None, "model": tmp_path}, log) as process:
        await reached(lambda: "no step predictor" in log.read_text())
        assert stop(process) == 0


async def test_a_query_that_raises_an_error_costs_the_others_no_answer(bus: Bus, directory: Path) -> None:
    predictor, card = load_predictor(directory)

    class Broken(StepPredictor):
        def steps_left(self, queries: Sequence[Query]) -> list[Float32]:
            if any(len(query.thresholds) == 1 for query in queries):
                raise ValueError("this query cannot be answered")
            return predictor.steps_left(queries)

    stopping = asyncio.Event()
    broken = PredictorService(bus, Broken(predictor._booster), card.version, PredictorMetrics("1"))
    running = asyncio.ensure_future(broken.run(stopping))
    await until(lambda: answers(bus))
    bad = msgspec.structs.replace(question(0), thresholds=pack_float32(THRESHOLDS[:1]))
    await bus.nc.publish(bus.subjects.predict, encode(bad), reply=bus.nc.new_inbox())
    replies = await asyncio.gather(*(ask(bus, question(seed)) for seed in range(3)))
    assert {reply.predictor for reply in replies} == {card.version}
    stopping.set()
    await running
