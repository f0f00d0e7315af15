"""Batches through the openai client; another gateway continues the batch of one that stops."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
import openai
import pytest
from nats.aio.msg import Msg
from openai.types import Batch

from services.gateway.batches.batch_lines import Line, read_lines
from services.gateway.batches.batch_runner import MAX_IN_FLIGHT
from services.gateway.bus_connection import BusConnection
from services.gateway.settings import GatewaySettings
from services.gateway.stores.batch_store import BatchStore
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.messages.gateway import Batch as StoredBatch
from shared.messages.gateway import BatchError, BatchStatus, BatchWork
from shared.text import TextModel
from tests.support.gateway import LIMIT_S, ONE_CELL, OWN_CELL, RunningGateway, claim_of, ready, running
from tests.support.present import present
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import eventually, reached, until

pytestmark = ONE_CELL

ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


def line(number: int, **changes: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "How many pears?"}
    body = {"model": "tiny-llada", "messages": [message], "seed": number} | changes
    return {"custom_id": f"q{number}", "method": "POST", "url": ENDPOINT, "body": body}


async def submit(api: openai.AsyncOpenAI, *rows: object) -> Batch:
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    file = await api.files.create(file=("in.jsonl", content), purpose="batch")
    return await api.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={"night": "1"}
    )


async def ended(api: openai.AsyncOpenAI, batch_id: str) -> Batch:
    return await eventually(
        lambda: api.batches.retrieve(batch_id),
        lambda found: found.status in {"completed", "failed", "cancelled", "expired"},
    )


async def is_settled(bus: Bus) -> bool:
    """Whether no batch is left in the queue."""
    return (await bus.js.stream_info(bus.subjects.stream("BATCHES"))).state.messages == 0


@pytest.fixture
async def batches(settings: GatewaySettings) -> AsyncIterator[BatchStore]:
    """As another gateway has it."""
    link = BusConnection()
    await link.connect(settings)
    yield BatchStore(link)
    await link.close()


async def rows_of(api: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (await api.files.content(present(file_id))).text.splitlines()]


@OWN_CELL
async def test_a_batch_runs_in_order_at_low_priority_and_separates_errors(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda request: str(request.seed)
    async with gateway.openai() as api:
        invalid = [line(40, temperature=9), line(41, model="other"), line(42, user="x" * 5_000_000)]
        rows = [*(line(i) for i in range(40)), *invalid]
        batch = await submit(api, *rows)
        done = await ended(api, batch.id)
        assert done.status == "completed"
        counts = present(done.request_counts)
        assert (counts.total, counts.completed, counts.failed) == (43, 40, 3)
        good = await rows_of(api, done.output_file_id)
        assert [row["custom_id"] for row in good] == [f"q{i}" for i in range(40)]
        texts = [row["response"]["body"]["choices"][0]["message"]["content"] for row in good]
        assert texts == [str(i) for i in range(40)]
        bad = await rows_of(api, done.error_file_id)
        assert [row["response"]["status_code"] for row in bad] == [400, 404, 413]
        assert bad[0]["response"]["body"]["error"]["param"] == "temperature"
        assert {request.priority for request in gateway.scheduler.requests} == {-50}
        assert all(
            [(await claim_of(gateway.scheduler.bus, each.request_id)).is_stored for each in gateway.scheduler.requests]
        )
        batches = [batch.id, (await submit(api, line(0))).id]
        assert sorted([known.id async for known in await api.batches.list(limit=1)]) == sorted(batches)
        with pytest.raises(openai.NotFoundError):
            await api.batches.list(after="batch-unknown")
        assert done.metadata == {"night": "1"}
        results = [file.id async for file in await api.files.list(purpose="batch_output", limit=1)]
        assert {done.output_file_id, done.error_file_id} <= set(results)
        assert {file.id async for file in await api.files.list(limit=1)} > {done.input_file_id, *results}
        assert (await api.files.delete(done.input_file_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await api.files.retrieve(done.input_file_id)
        with pytest.raises(openai.NotFoundError) as unknown:
            await api.batches.create(input_file_id="file-x", endpoint=ENDPOINT, completion_window="24h")
        assert unknown.value.param == "input_file_id"


@OWN_CELL
async def test_a_batch_that_cannot_be_queued_is_not_created(gateway: RunningGateway) -> None:
    js, stream = gateway.scheduler.bus.js, gateway.scheduler.bus.subjects.stream("BATCHES")
    await js.update_stream((await js.stream_info(stream)).config.evolve(max_msgs=1))
    gateway.scheduler.hold = asyncio.Event()
    async with gateway.openai() as api:
        first = await submit(api, line(0))
        with pytest.raises(openai.InternalServerError) as refusal:
            await submit(api, line(1))
        assert refusal.value.status_code == 503
        assert [batch.id async for batch in await api.batches.list()] == [first.id]
        gateway.scheduler.hold.set()
        assert (await ended(api, first.id)).status == "completed"


async def test_a_line_whose_request_the_bus_lost_is_sent_again(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.batches.line_server.RETRY_S", 0.01)
    gateway.scheduler.losses = 1
    async with gateway.openai() as api:
        done = await ended(api, (await submit(api, line(0), line(1))).id)
    counts = present(done.request_counts)
    assert (counts.total, counts.completed, counts.failed) == (2, 2, 0)


async def test_a_line_may_ask_for_its_prompt_alone(gateway: RunningGateway) -> None:
    path: Literal["/v1/completions"] = "/v1/completions"
    body = {"model": "tiny-llada", "prompt": "2+2=", "echo": True, "max_tokens": 0}
    row = {"custom_id": "q", "method": "POST", "url": path, "body": body}
    async with gateway.openai() as api:
        file = await api.files.create(file=("in.jsonl", json.dumps(row).encode()), purpose="batch")
        batch = await api.batches.create(input_file_id=file.id, endpoint=path, completion_window="24h")
        done = await ended(api, batch.id)
        [served] = await rows_of(api, done.output_file_id)
    assert served["response"]["body"]["choices"][0]["text"] == "2+2="
    assert gateway.scheduler.requests == []


@OWN_CELL
async def test_the_next_gateway_resumes_a_batch_and_repeats_nothing(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, batches: BatchStore
) -> None:
    scheduler.hold = asyncio.Event()
    async with ready(settings, text) as first:
        async with first.openai() as api:
            batch = await submit(api, *(line(i) for i in range(5)))
        async with asyncio.timeout(LIMIT_S):
            for _ in range(5):
                await scheduler.received()
    scheduler.hold.set()
    await batches.set(batch.id, {"began_s": 1})
    async with ready(settings, text) as second, second.openai() as api:
        done = await ended(api, batch.id)
        assert (done.status, done.in_progress_at) == ("completed", 1)
        assert len(await rows_of(api, done.output_file_id)) == 5
    assert scheduler.cancelled.empty()
    assert len({request.request_id for request in scheduler.requests}) == 5


@OWN_CELL
@pytest.mark.parametrize("status", ["cancelled", "expired"])
async def test_a_batch_that_is_stopped_while_no_gateway_runs_keeps_the_lines_served(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, batches: BatchStore, status: str
) -> None:
    scheduler.hold = asyncio.Event()
    async with ready(settings, text) as first, first.openai() as api:
        batch = await submit(api, *(line(i) for i in range(40)))
        sent = {await scheduler.received() for _ in range(MAX_IN_FLIGHT)}
    scheduler.hold.set()
    await reached(lambda: scheduler.ended == sent)
    await (batches.set(batch.id, {"expires_s": 1}) if status == "expired" else batches.cancel(batch.id, ""))
    async with ready(settings, text) as second, second.openai() as api:
        done = await ended(api, batch.id)
        rows = await rows_of(api, done.output_file_id)
    assert (done.status, len(rows), done.error_file_id) == (status, MAX_IN_FLIGHT, None)
    assert {row["id"] for row in rows} == sent == {request.request_id for request in scheduler.requests}


@OWN_CELL
async def test_the_counts_of_a_batch_do_not_fall_while_it_is_resumed(
    settings: GatewaySettings,
    text: TextModel,
    scheduler: AnsweringScheduler,
    batches: BatchStore,
    bus: Bus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.gateway.batches.batch_runner.SAVE_S", 0.0)
    scheduler.hold = asyncio.Event()
    async with ready(settings, text) as first, first.openai() as api:
        batch = await submit(api, *(line(i) for i in range(3)))
        sent = {await scheduler.received() for _ in range(3)}
    scheduler.hold.set()
    await reached(lambda: scheduler.ended == sent)
    await batches.set(batch.id, {"completed": 2})
    stored = list[int]()

    async def note(msg: Msg) -> None:
        stored.append(decode(msg.data, StoredBatch).completed)

    await bus.nc.subscribe(f"$KV.{bus.subjects.batches_bucket}.{batch.id}", cb=note)
    async with ready(settings, text) as second, second.openai() as api:
        await ended(api, batch.id)
        await reached(lambda: stored[-1:] == [3])
    assert min(stored) >= 2


@OWN_CELL
async def test_a_cancelled_batch_reports_only_the_invalid_lines_that_were_read_before(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, batches: BatchStore
) -> None:
    async with ready(settings, text) as first, first.openai() as api:
        batch = await submit(api, *(line(i, temperature=9) for i in range(3000)))
        found = await eventually(
            lambda: api.batches.retrieve(batch.id), lambda found: found.request_counts and found.request_counts.failed
        )
    await batches.cancel(batch.id, "")
    async with ready(settings, text) as second, second.openai() as api:
        done = await ended(api, batch.id)
        rows = await rows_of(api, done.error_file_id)
    before, after = present(found.request_counts).failed, present(done.request_counts).failed
    assert before <= after == len(rows) < 1000


@OWN_CELL  # as the bus keeps the second message for a while
async def test_a_batch_redelivered_while_it_runs_does_not_run_twice(gateway: RunningGateway) -> None:
    bus = gateway.scheduler.bus
    gateway.scheduler.hold = asyncio.Event()
    async with gateway.openai() as api:
        batch = await submit(api, line(0))
        async with asyncio.timeout(LIMIT_S):
            await gateway.scheduler.received()
            await bus.store(bus.subjects.batches, BatchWork(batch_id=batch.id))
            await submit(api, line(1))  # received after it
            await gateway.scheduler.received()
        gateway.scheduler.hold.set()
        done = await ended(api, batch.id)
        assert len(await rows_of(api, done.output_file_id)) == 1
    assert [request.seed for request in gateway.scheduler.requests] == [0, 1]


@OWN_CELL
async def test_a_batch_ended_by_another_gateway_is_not_changed(
    bus: Bus, batches: BatchStore, gateway: RunningGateway
) -> None:
    gateway.scheduler.hold = asyncio.Event()
    async with gateway.openai() as api:
        batch = await submit(api, line(0))
        await gateway.scheduler.received()
        other = {"status": BatchStatus.COMPLETED, "ended_s": 1, "output_file_id": "file-1"}
        await batches.set(batch.id, other)
        await until(lambda: is_settled(bus))
        assert (await api.batches.retrieve(batch.id)).output_file_id == "file-1"
        assert [file.id async for file in await api.files.list()] == [batch.input_file_id]


async def test_a_cancelled_batch_keeps_its_completed_lines(gateway: RunningGateway) -> None:
    gateway.scheduler.hold = asyncio.Event()
    async with gateway.openai() as api:
        batch = await submit(api, *(line(i) for i in range(3)))
        waiting = {await gateway.scheduler.received() for _ in range(3)}
        with pytest.raises(openai.ConflictError) as refusal:
            await api.files.delete(batch.input_file_id)
        assert (refusal.value.code, batch.id in refusal.value.message) == ("file_in_use", True)
        assert (await api.batches.cancel(batch.id)).status == "cancelling"
        done = await ended(api, batch.id)
        assert (done.status, done.output_file_id) == ("cancelled", None)
        with pytest.raises(openai.ConflictError):
            await api.batches.cancel(batch.id)
        async with asyncio.timeout(LIMIT_S):
            assert {await gateway.scheduler.cancelled.get() for _ in range(3)} == waiting
        assert (await api.files.delete(batch.input_file_id)).deleted
    gateway.scheduler.hold.set()


@OWN_CELL
async def test_a_waiting_batch_is_cancelled_at_once(
    bus: Bus, batches: BatchStore, settings: GatewaySettings, text: TextModel
) -> None:
    batch = await batches.create("", ENDPOINT, "file-1", {})
    assert (await batches.cancel(batch.batch_id, "")).status is BatchStatus.CANCELLED
    async with running(settings, text):
        await until(lambda: is_settled(bus))
    assert (await batches.get(batch.batch_id, "")).status is BatchStatus.CANCELLED


async def test_a_batch_that_is_cancelled_while_its_file_is_read_is_not_served(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def read_slowly(chunks: AsyncIterator[bytes], endpoint: str, errors: list[BatchError]) -> AsyncIterator[Line]:
        reading.set()
        await go_on.wait()
        async for each in read_lines(chunks, endpoint, errors):
            yield each

    monkeypatch.setattr("services.gateway.batches.batch_runner.read_lines", read_slowly)
    async with gateway.openai() as api:
        batch = await submit(api, line(0))
        await reached(reading.is_set)
        assert (await api.batches.cancel(batch.id)).status == "cancelled"
        go_on.set()
        await until(lambda: is_settled(gateway.scheduler.bus))
    assert gateway.scheduler.requests == []


@OWN_CELL
async def test_a_batch_leaves_room_for_interactive_requests(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler
) -> None:
    scheduler.hold = asyncio.Event()
    small = msgspec.structs.replace(settings, max_active_requests=1)
    async with ready(small, text) as gateway, gateway.openai() as api:
        batch = await submit(api, line(0))
        await scheduler.received()
        interactive = asyncio.create_task(gateway.http.post(ENDPOINT, json=line(1)["body"]))
        await reached(lambda: interactive.done() or not scheduler.served.empty())
        scheduler.hold.set()
        assert (await interactive).status_code == 200
        assert (await ended(api, batch.id)).status == "completed"


async def test_a_file_whose_content_is_lost_is_not_found_and_fails_its_batch(gateway: RunningGateway) -> None:
    bus = gateway.scheduler.bus
    async with gateway.openai() as api:
        file = await api.files.create(file=("in.jsonl", b"{}"), purpose="batch")
        store = await bus.js.object_store(bus.subjects.files_store)
        chunks = f"$O.{bus.subjects.files_store}.C.{(await store.get_info(file.id)).nuid}"
        await bus.js.purge_stream(f"OBJ_{bus.subjects.files_store}", subject=chunks)
        with pytest.raises(openai.NotFoundError) as lost:
            await api.files.content(file.id)
        assert "upload it again" in lost.value.message
        batch = await api.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        failed = await ended(api, batch.id)
    assert failed.status == "failed"
    assert ["upload it again" in error.message for error in present(failed.errors).data or [] if error.message] == [
        True
    ]


async def test_a_batch_of_invalid_lines_blocks_no_requests_and_can_be_cancelled(gateway: RunningGateway) -> None:
    async with gateway.openai() as api:
        batch = await submit(api, *(line(i, temperature=9) for i in range(3000)))
        await eventually(lambda: api.batches.retrieve(batch.id), lambda found: found.status == "in_progress")
        await api.batches.cancel(batch.id)
        done = await ended(api, batch.id)
        assert done.status == "cancelled"
        assert present(done.request_counts).failed < 3000


@OWN_CELL
async def test_a_batch_that_was_queued_in_a_deleted_stream_is_run(
    bus: Bus, batches: BatchStore, settings: GatewaySettings, text: TextModel
) -> None:
    batch = await batches.create("", ENDPOINT, "file-gone", {})
    await bus.js.delete_stream(bus.subjects.stream("BATCHES"))
    await bus.set_up()
    async with running(settings, text):
        await eventually(lambda: batches.get(batch.batch_id, ""), lambda found: found.ended)


@OWN_CELL
async def test_a_batch_whose_file_is_missing_fails_with_the_reason(
    gateway: RunningGateway, batches: BatchStore
) -> None:
    batch = await batches.create("", ENDPOINT, "file-gone", {})
    async with gateway.openai() as api:
        failed = await ended(api, batch.batch_id)
    assert failed.status == "failed"
    assert [error.code for error in present(failed.errors).data or []] == ["not_found"]


async def test_unknown_fields_of_a_batch_are_named_as_ignored(gateway: RunningGateway) -> None:
    async with gateway.openai() as api:
        file = await api.files.create(file=("in.jsonl", b"{}"), purpose="batch")
        fields: dict[str, Any] = {"output_expires_after": {"anchor": "created_at", "seconds": 3600}, "metadata": None}
        sent = {"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h", "prompt": None} | fields
        reply = await gateway.http.post("/v1/batches", json=sent)
        assert (reply.status_code, reply.headers["X-Dilaserve-Ignored"]) == (200, "output_expires_after")


async def test_an_invalid_file_fails_the_batch_with_the_line(gateway: RunningGateway) -> None:
    async with gateway.openai() as api:
        batch = await submit(api, line(0), line(0), {"custom_id": "x"}, line(1) | {"url": "/v1/embeddings"})
        failed = await ended(api, batch.id)
        assert failed.status == "failed"
        assert [error.line for error in present(failed.errors).data or []] == [2, 3, 4]
        with pytest.raises(openai.NotFoundError):
            await api.batches.create(input_file_id="file-none", endpoint=ENDPOINT, completion_window="24h")
        with pytest.raises(openai.BadRequestError):
            await api.files.create(file=("empty", b""), purpose="batch")
        with pytest.raises(openai.BadRequestError):
            await api.files.create(file=("in", b"x"), purpose="fine-tune")
        form: Any = {"files": {"other": b"x"}, "data": {"purpose": "batch"}}
        assert (await gateway.http.post("/v1/files", **form)).json()["error"]["param"] == "file"
