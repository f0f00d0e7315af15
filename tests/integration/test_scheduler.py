"""The scheduler as a process on the real bus, with a scripted instance."""

import asyncio
import itertools
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.errors
import pytest
from msgspec.structs import replace
from nats.aio.msg import Msg

from services.scheduler.algorithms.refusal import MAX_RETRY_S
from shared.arrays import unpack_float32
from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.messages.requests import (
    ActiveRequest,
    Cancel,
    Outcome,
    OutcomeStatus,
    Request,
    UnfinishedQuery,
    UnfinishedRequests,
)
from shared.messages.stats import SchedulerStats
from shared.messages.steps import StepJobs, StepResults
from tests.support.nats import NatsServer, new_cell
from tests.support.present import present
from tests.support.scheduled_cell import LIMIT_S, LOG, MODEL_NAME, Cluster
from tests.support.services import service, stop
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually, reached, until

SHARED = "scheduled"  # the cell of the shared scheduler
numbers = itertools.count()


@pytest.fixture(scope="module")
def scheduled(
    nats_server: NatsServer, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Run the scheduler of the cell SHARED, for tests that do not stop it. Returns: its directory."""
    directory = tmp_path_factory.mktemp("shared")
    settings = {"nats_url": nats_server.url, "cell": SHARED, "model": tiny_model_dir, "model_name": MODEL_NAME}
    settings["policy"] = "fixed"  # its instances have no profile
    with service("scheduler", settings, directory / LOG):
        yield directory


@pytest.fixture
async def shared(scheduled: Path, tiny_model_dir: Path, nats_server: NatsServer) -> AsyncIterator[Cluster]:
    """The cell SHARED with its scheduler; each test brings its own instance and request ids."""
    async with new_cell(nats_server, SHARED) as bus:
        yield Cluster(bus, tiny_model_dir, scheduled, nats_server.url)


async def test_a_message_that_is_no_outcome_does_not_take_the_place_of_one(shared: Cluster) -> None:
    bus, request_id = shared.bus, f"occupied-{next(numbers)}"
    await bus.js.publish(bus.subjects.outcomes(request_id), b'{"stream": "REQUESTS", "seq": 1}')  # a reply of the bus
    async with shared.instance():
        await shared.outcome(Request(request_id=request_id, prompt="hi"))
        await until(shared.all_acknowledged)
    assert (await stored(shared, request_id)).status is OutcomeStatus.COMPLETED


async def stored(cluster: Cluster, request_id: str) -> Outcome:
    """Wait until an outcome is stored: a subscriber may receive it before."""
    return present(await eventually(lambda: cluster.bus.outcome(request_id), lambda found: found is not None))


async def test_a_json_request_without_client_library_is_answered_in_json(
    shared: Cluster, nats_server: NatsServer
) -> None:
    root = f"dilaserve.{SHARED}"
    async with shared.instance(), await nats.connect(nats_server.url) as client:
        outcomes = await client.subscribe(f"{root}.outcomes.job-1")
        request = {"request_id": "job-1", "prompt": "2+2=", "output_tokens": 32}
        await client.jetstream().publish(f"{root}.requests", json.dumps(request).encode())
        outcome = json.loads((await outcomes.next_msg(timeout=LIMIT_S)).data)
        assert (outcome["status"], outcome["completion_tokens"]) == ("completed", 32)
        await stored(shared, "job-1")
        last = await client.jetstream().get_last_msg(f"OUTCOMES-{SHARED}", f"{root}.outcomes.job-1")
        assert json.loads(last.data or b"") == outcome


async def test_garbage_on_every_subject_is_logged_and_serving_continues(shared: Cluster) -> None:
    subjects = shared.bus.subjects
    async with shared.instance():
        bucket = await shared.bus.bucket(subjects.instances_bucket)
        for garbage in (b"", b"\x00garbage", b"{", b"[1,2]", b"\xc1" * 100, b'{"request_id": "no spaces!"}'):
            await shared.bus.js.publish(subjects.requests, garbage)
            for subject in (subjects.step_results("w-1"), subjects.cancel("x"), subjects.steps("w-9")):
                await shared.bus.nc.publish(subject, garbage)
            await bucket.put("garbage", garbage)
        await shared.bus.publish(subjects.step_results("w-1"), StepResults(instance_id="w-1", epoch=1, tickets=b"1"))
        outcome = await shared.outcome(Request(request_id="after-garbage", prompt="x", output_tokens=32))
        assert outcome.status is OutcomeStatus.COMPLETED
        await bucket.delete("garbage")
    log = shared.log.read_text()
    assert "message discarded" in log
    assert "invalid message dropped" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"reason": null}', encode(Cancel(reason="enough"))])
async def test_a_cancelled_request_ends_as_cancelled(shared: Cluster, payload: bytes) -> None:
    subjects, request_id = shared.bus.subjects, f"cancelled-{next(numbers)}"
    outcomes = await shared.bus.nc.subscribe(subjects.outcomes(request_id))
    await shared.bus.store(subjects.requests, Request(request_id=request_id, prompt="x"))
    async with asyncio.timeout(LIMIT_S):  # the scheduler may not have received the request yet
        while True:
            await shared.bus.nc.publish(subjects.cancel(request_id), payload)
            try:
                msg = await outcomes.next_msg(timeout=0.2)
                break
            except TimeoutError:
                continue
    assert decode(msg.data, Outcome).status is OutcomeStatus.CANCELLED


async def test_a_scheduler_that_sheds_refuses_a_request_once_and_serves_its_repetition(cluster: Cluster) -> None:
    """Its statistics and outcomes show what it has served."""
    request = Request(request_id="r1", prompt="x", output_tokens=32, slo_s=1e-6, may_refuse=True)
    with service("scheduler", cluster.settings | {"shed": "true"}, cluster.log):
        stats = await cluster.bus.nc.subscribe(cluster.bus.subjects.stats("scheduler"))
        async with cluster.instance():
            patient = Request(request_id="r0", prompt="x", output_tokens=32, slo_s=LIMIT_S, may_refuse=True)
            served = await cluster.outcome(patient)
            assert served.status is OutcomeStatus.COMPLETED
            decisions = present(served.decisions)
            assert decisions.instances == ["w-1"]
            assert len(unpack_float32(decisions.thresholds)) == present(served.stats).steps
            async with asyncio.timeout(LIMIT_S):
                while True:
                    latest = decode((await stats.next_msg(timeout=LIMIT_S)).data, SchedulerStats)
                    if latest.completed:
                        break
            assert (latest.arrived, latest.tokens, latest.slo_attainment) == (1, 32, 1.0)
            assert [load.instance_id for load in latest.instances] == ["w-1"]
            refused = await cluster.outcome(request)
            assert (refused.status, refused.stats) == (OutcomeStatus.REFUSED, None)
            assert present(refused.error).retry_after_s == MAX_RETRY_S
            repeated = await cluster.outcome(replace(request, slo_s=LIMIT_S))
            assert repeated.status is OutcomeStatus.COMPLETED


@pytest.mark.slow
async def test_a_scheduler_that_stalled_sends_nothing_if_another_leads(cluster: Cluster) -> None:
    """The results that arrived meanwhile would otherwise make it send the next jobs, and tokens to clients."""
    bus, sent = cluster.bus, asyncio.Queue[StepJobs]()

    async def receive(msg: Msg) -> None:
        if (jobs := decode(msg.data, StepJobs)).tickets:
            sent.put_nowait(jobs)

    await bus.nc.subscribe(bus.subjects.steps("w-1"), cb=receive)
    async with cluster.registered("w-1") as worker:
        with service("scheduler", cluster.settings, cluster.log) as first:
            await bus.store(bus.subjects.requests, Request(request_id="r1", prompt="x", output_tokens=64))
            async with asyncio.timeout(LIMIT_S):
                first_jobs = await sent.get()
                first.send_signal(signal.SIGSTOP)
                for results in worker.run_each(first_jobs):
                    await bus.publish(bus.subjects.step_results("w-1"), results)
                with service("scheduler", cluster.settings, cluster.log):
                    while (await sent.get()).epoch == first_jobs.epoch:  # sent ahead
                        continue
                    first.send_signal(signal.SIGCONT)
                    assert await asyncio.to_thread(first.wait, LIMIT_S) == 1
                    await bus.nc.flush()
    epochs = {sent.get_nowait().epoch for _ in range(sent.qsize())}
    assert first_jobs.epoch not in epochs


@pytest.mark.slow
async def test_an_unstorable_outcome_loses_no_request_and_does_not_block_a_stop(cluster: Cluster) -> None:
    subjects, js = cluster.bus.subjects, cluster.bus.js
    requests = subjects.stream("REQUESTS")
    with service("scheduler", cluster.settings | {"log_level": "debug"}, cluster.log) as process:
        await reached(lambda: "leading" in cluster.log.read_text())
        outcomes = (await js.stream_info(subjects.stream("OUTCOMES"))).config
        await js.update_stream(outcomes.evolve(max_msg_size=1))  # refuses every outcome
        await cluster.bus.store(subjects.requests, Request(request_id="no-prompt"))
        await reached(lambda: "cannot store on" in cluster.log.read_text())
        [consumer] = await js.consumers_info(requests)
        await js.delete_consumer(requests, consumer.name)  # the bus then redelivers all requests
        await reached(lambda: "request received again" in cluster.log.read_text())
        assert await asyncio.to_thread(stop, process) == 0
    assert not await cluster.all_acknowledged()


@pytest.mark.slow
async def test_a_standby_scheduler_stops_on_sigterm(scheduled: Path, shared: Cluster) -> None:
    await reached(lambda: "leading" in shared.log.read_text())
    log = scheduled / "second.log"
    with service("scheduler", shared.settings, log) as second:
        await reached(lambda: "standing by" in log.read_text())
        assert await asyncio.to_thread(stop, second) == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    "name", ["scheduler", *(pytest.param(name, marks=pytest.mark.slow) for name in ("reconfigurator", "worker"))]
)
async def test_a_service_stops_on_sigterm_while_the_bus_is_unavailable(
    name: str, tiny_checkpoint_dir: Path, tmp_path: Path
) -> None:
    settings = {"nats_url": "nats://127.0.0.1:9", "model": tiny_checkpoint_dir}
    with service(name, settings, log := tmp_path / LOG) as process:
        await reached(lambda: "bus unavailable" in log.read_text())
        assert await asyncio.to_thread(stop, process) == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
async def test_a_leader_stops_on_sigterm_while_the_bus_is_unavailable(
    own_server: NatsServer, tiny_model_dir: Path, tmp_path: Path
) -> None:
    settings = {"nats_url": own_server.url, "model": tiny_model_dir}
    with service("scheduler", settings, log := tmp_path / LOG) as process:
        bus = await Bus.connect(own_server.url, "cell0", name="test")
        await (await bus.nc.subscribe(bus.subjects.stats("scheduler"))).next_msg(timeout=LIMIT_S)
        await bus.close()
        own_server.stop()
        await reached(lambda: "cannot renew the lease" in log.read_text())  # it may have expired
        assert await asyncio.to_thread(stop, process) == 0
    assert "Traceback" not in log.read_text()


async def test_requests_that_a_broken_connection_lost_are_served(cluster: Cluster, nats_server: NatsServer) -> None:
    await cluster.bus.set_up()
    proxy = TcpProxy(nats_server.port)
    settings = cluster.settings | {"nats_url": f"nats://127.0.0.1:{await proxy.start()}"}
    with service("scheduler", settings, cluster.log) as process:
        async with cluster.instance():
            await cluster.outcome(Request(request_id="before", prompt="2+2=", output_tokens=32))
            proxy.silence()
            requests = [Request(request_id=f"lost-{i}", prompt="2+2=", output_tokens=32) for i in range(5)]
            waiting = [asyncio.ensure_future(cluster.outcome(request)) for request in requests]
            await asyncio.wait_for(proxy.has_dropped(b"lost-4"), LIMIT_S)
            proxy.reset()
            outcomes = await asyncio.gather(*waiting)
            assert {outcome.status for outcome in outcomes} == {OutcomeStatus.COMPLETED}
            await until(cluster.all_acknowledged)
        await asyncio.to_thread(stop, process)  # it disconnects through the proxy
    await proxy.stop()


async def test_the_scheduler_knows_and_lists_requests_that_wait_or_run(shared: Cluster) -> None:
    subjects, name = shared.bus.subjects, f"unfinished-{next(numbers)}"
    await shared.bus.store(subjects.requests, Request(request_id=name, prompt="hi", key="alice", priority=3))

    async def listed(**query: str) -> list[str]:
        reply = await shared.bus.nc.request(subjects.unfinished, encode(UnfinishedQuery(**query)))
        return [each.request_id for each in decode(reply.data, UnfinishedRequests).requests]

    async def look_up(request_id: str) -> ActiveRequest:
        return decode((await shared.bus.nc.request(subjects.lookup(request_id), b"")).data, ActiveRequest)

    async def is_known() -> bool:
        try:
            return (await look_up(name)).is_known
        except nats.errors.NoRespondersError:  # the scheduler starts
            return False

    await until(is_known)
    found = await look_up(name)
    assert (found.key, found.arrival_s > 0) == ("alice", True)
    assert not (await look_up("no-such")).is_known
    assert await listed(key="alice", id_part=name[:-1]) == [name]
    assert name not in await listed(key="bob")
    await shared.bus.publish(subjects.cancel(name), Cancel())
    await eventually(lambda: look_up(name), lambda found: not found.is_known)
    await eventually(listed, lambda found: name not in found)
    outcome = await stored(shared, name)
    assert (outcome.key, outcome.priority) == ("alice", 3)
