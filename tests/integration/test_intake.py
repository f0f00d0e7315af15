"""Receipt of requests on the real bus: concurrent preparation, priorities beyond the limit, one outcome each."""

import asyncio
import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from nats.js.api import ConsumerConfig, PubAck

from services.scheduler.events import FinishRequest, RequestCancelled
from services.scheduler.io.lease import Lease
from services.scheduler.io.outcome_store import LOST
from services.scheduler.io.recovery import Recovery
from services.scheduler.io.request_decoder import decode_request
from shared.arrays import Int32, pack_int32
from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.edits import NO_EDITS
from shared.messages.checkpoints import Checkpoint
from shared.messages.requests import MAX_STOPS, Arrival, Outcome, OutcomeError, OutcomeStatus, Request
from shared.messages.versions import FIRST_VERSION, VERSION
from shared.pinned import FREE
from shared.text import TextModel
from shared.tokenizer import LONG_TEXT
from tests.support.gemma_files import CANVAS, write_gemma_files
from tests.support.intake import SLO_S, Intake, receiving
from tests.support.present import present
from tests.support.waiting import LIMIT_S, eventually


class HeldText(TextModel):
    """Tokenizes long texts only once `go` is set."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "tiny")
        self.began = threading.Semaphore(0)
        self.go = threading.Event()

    def encode_request(self, request: Request) -> Int32:
        if len(request.prompt or "") > LONG_TEXT:
            self.began.release()
            assert self.go.wait(LIMIT_S)
        return super().encode_request(request)


class HeldRecovery(Recovery):
    """Reads checkpoints only once `go` is set."""

    go: asyncio.Event

    async def checkpoint(self, request_id: str) -> Checkpoint | None:
        await self.go.wait()
        return await super().checkpoint(request_id)


async def test_long_texts_do_not_hold_up_short_ones(bus: Bus, tiny_model_dir: Path) -> None:
    held = HeldText(tiny_model_dir)
    async with receiving(bus, held) as intake:
        for i in range(40):  # more than the threads of a pool
            await intake.send(f"long-{i}", "x" * (LONG_TEXT + 1))
        await asyncio.to_thread(held.began.acquire)
        for i in range(50):
            await intake.send(f"short-{i}")
        assert set(await intake.arrived_names(50)) == {f"short-{i}" for i in range(50)}
        held.go.set()
        assert {await intake.status(f"long-{i}") for i in range(40)} == {OutcomeStatus.REJECTED}


async def test_reads_of_earlier_state_do_not_hold_up_new_requests(bus: Bus, text: TextModel) -> None:
    for i in range(100):
        await bus.store(bus.subjects.requests, Request(request_id=f"earlier-{i}", prompt="x"))
    recovery = await HeldRecovery.start(bus)
    recovery.go = asyncio.Event()
    async with receiving(bus, text, recovery=recovery) as intake:
        await intake.send("new")
        assert await intake.arrived_names(1) == ["new"]
        recovery.go.set()
        assert set(await intake.arrived_names(100)) == {f"earlier-{i}" for i in range(100)}


async def test_outcomes_of_a_distrusted_instance_are_marked_at_any_time(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        names = [f"r-{i}" for i in range(4)]
        for name in names:
            await intake.send(name)
        stored, good, being_stored, later = [await intake.arrived() for _ in names]
        intake.finish(stored, ["bad", "good"])
        await intake.until_unfinished(3)
        intake.finish(good, ["good"])
        intake.finish(being_stored, ["bad"])
        intake.outcomes.distrust("bad", LIMIT_S)
        intake.finish(later, ["good", "bad"])
        await intake.outcomes.drain()
        finished = [await bus.outcome(each.request.request_id) for each in (stored, good, being_stored, later)]
        assert [present(each).unverified for each in finished] == [True, False, True, True]


async def test_beyond_the_limit_the_highest_priority_is_served_first(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text, max_held=2) as intake:
        for i in range(10):
            await intake.send(f"low-{i}")
        await intake.send("high", priority=5)
        await intake.until_waiting(9)
        first, second = await intake.arrived(), await intake.arrived()
        assert {first.request.request_id, second.request.request_id} == {"low-0", "low-1"}
        intake.finish(first)
        high = await intake.arrived()
        assert high.request.request_id == "high"
        await intake.send("higher", priority=6)
        await intake.until_waiting(9)
        for ended, following in ((high, "higher"), (second, "low-2")):
            intake.finish(ended)
            assert (await intake.arrived()).request.request_id == following


async def test_a_waiting_request_reaches_the_core_with_its_tokens_only_once(bus: Bus, text: TextModel) -> None:
    sent = Request(request_id="r", prompt_ids=pack_int32([5, 6, 7]), output_tokens=33, slo_s=9.0, age_s=1e9)
    async with receiving(bus, text, max_held=1) as intake:
        await intake.send("first")
        trace = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        await bus.publish(bus.subjects.requests, sent, headers=trace)
        await intake.until_waiting(1)
        intake.finish(await intake.arrived())
        arrived = await intake.arrived()
    assert arrived.request == replace(sent, prompt_ids=None)
    assert (arrived.prompt_ids.tolist(), arrived.output_length, arrived.slo_s) == ([5, 6, 7], 64, 9.0)
    assert (round((time.time() - arrived.arrival_s) / 1e9, 3), arrived.trace) == (1.0, trace)


async def test_arrivals_are_published_while_the_core_takes_no_request(bus: Bus, text: TextModel) -> None:
    arrivals = await bus.nc.subscribe(bus.subjects.arrivals)
    async with receiving(bus, text, max_held=2) as intake:
        for i in range(50):
            await intake.send(f"r{i}", "x" * 8)
        received = [decode((await arrivals.next_msg(LIMIT_S)).data, Arrival) for _ in range(50)]
        assert {arrival.request_id for arrival in received} == {f"r{i}" for i in range(50)}
        assert {arrival.slo_s for arrival in received} == {SLO_S}
        assert {arrival.prompt_tokens for arrival in received} == {8, 2}  # tokenized, or estimated from the text
        assert (intake.totals.arrived, intake.consumer.num_waiting) == (50, 48)
        intake.finish(await intake.arrived())
        await intake.until_waiting(47)
        await intake.send("last", "x" * 8)
        assert decode((await arrivals.next_msg(LIMIT_S)).data, Arrival).request_id == "last"  # none comes twice


async def test_a_cancelled_waiting_request_never_reaches_the_core(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text, max_held=1) as intake:
        for name in ("first", "cancelled", "next"):
            await intake.send(name)
        await intake.until_waiting(2)
        await bus.nc.publish(bus.subjects.cancel("cancelled"), b"")
        assert await intake.status("cancelled") is OutcomeStatus.CANCELLED
        await intake.until_unfinished(2)
        intake.finish(await intake.arrived())
        assert await intake.arrived_names(1) == ["next"]
        assert (intake.totals.arrived, intake.totals.cancelled) == (3, 1)


async def test_a_cancel_before_its_request_ends_the_request(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        await bus.nc.publish(bus.subjects.cancel("r"), b"")
        await bus.nc.flush()
        await intake.send("r")
        await intake.send("other")
        assert await intake.status("r") is OutcomeStatus.CANCELLED
        assert await intake.arrived_names(1) == ["other"]
        await intake.until_unfinished(1)


async def test_a_cancel_during_the_preparation_follows_the_request_to_the_core(bus: Bus, text: TextModel) -> None:
    await bus.store(bus.subjects.requests, Request(request_id="r", prompt="x"))
    recovery = await HeldRecovery.start(bus)
    recovery.go = asyncio.Event()
    async with receiving(bus, text, recovery=recovery) as intake:
        await intake.send("other")
        assert await intake.arrived_names(1) == ["other"]  # so "r" is received
        await bus.nc.publish(bus.subjects.cancel("r"), b"")
        await bus.nc.publish(bus.subjects.cancel("other"), b"")
        assert await intake.next_event() == RequestCancelled("other")
        recovery.go.set()
        assert await intake.arrived_names(1) == ["r"]
        assert await intake.next_event() == RequestCancelled("r")


@pytest.mark.parametrize("max_held", [1, 1000], ids=["waiting", "held"])
async def test_a_second_message_of_a_request_is_acknowledged_and_changes_nothing(
    bus: Bus, text: TextModel, max_held: int
) -> None:
    async with receiving(bus, text, max_held=max_held) as intake:
        await intake.send("first")
        await intake.send("r", "the first text")
        for prompt in ("another text", "<|mdm_mask|>"):
            await intake.send("r", prompt)
        await bus.js.publish(bus.subjects.requests, b'{"request_id": "r", "priority": "high"}')  # invalid
        await intake.send("last")
        await intake.until_unfinished(3)
        intake.finish(await intake.arrived())
        arrived = await intake.arrived()
        assert arrived.prompt_ids.tolist() == text.encode_prompt("the first text").tolist()
        intake.finish(arrived)
        assert await intake.status("r") is OutcomeStatus.COMPLETED
        assert await intake.arrived_names(1) == ["last"]
        assert intake.totals.arrived == 3


@pytest.mark.parametrize("max_held", [1, 1000], ids=["waiting", "held"])
async def test_a_redelivered_message_is_served_once(bus: Bus, text: TextModel, max_held: int) -> None:
    stream = bus.subjects.stream("REQUESTS")
    async with receiving(bus, text, max_held=max_held) as intake:
        for name in ("first", "r"):
            await intake.send(name)
        first = await intake.arrived()
        [consumer] = await bus.js.consumers_info(stream)
        await bus.js.delete_consumer(stream, consumer.name)  # the bus then redelivers all requests
        await intake.send("last")
        await intake.until_waiting(2 if max_held == 1 else 0)
        intake.finish(first)
        following = await intake.arrived()
        intake.finish(following)
        last = await intake.arrived()
        intake.finish(last)
        assert [one.request.request_id for one in (following, last)] == ["r", "last"]
        await intake.until_unfinished(0)
        assert intake.totals.arrived == 3


@pytest.mark.parametrize("name", ["inspect", "debug-7"])
async def test_a_consumer_of_somebody_else_does_not_hold_up_requests(bus: Bus, text: TextModel, name: str) -> None:
    await bus.js.add_consumer(bus.subjects.stream("REQUESTS"), ConsumerConfig(durable_name=name))
    lease = await Lease.acquire(bus, "first")
    async with receiving(bus, text, epoch=lease.epoch) as intake:
        await intake.send("r")
        assert await intake.arrived_names(1) == ["r"]


async def test_a_scheduler_waits_for_the_stream_of_requests(bus: Bus) -> None:
    await bus.js.delete_stream(bus.subjects.stream("REQUESTS"))
    starting = asyncio.create_task(Recovery.start(bus))
    await asyncio.sleep(0)  # it asks for the stream first
    await bus.set_up()
    assert not (await starting).covers(1)


async def test_waiting_requests_are_served_by_the_next_scheduler(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text, max_held=1) as intake:
        for i in range(5):
            await intake.send(f"r{i}")
        await intake.until_waiting(4)
    async with receiving(bus, text, max_held=1, epoch=2) as intake:
        for i in range(5):
            arrived = await intake.arrived()
            assert arrived.request.request_id == f"r{i}"
            intake.finish(arrived)
        await intake.until_unfinished(0)


async def test_a_waiting_request_that_is_finished_is_only_acknowledged(bus: Bus, text: TextModel) -> None:
    for name in ("first", "finished", "last"):
        await bus.store(bus.subjects.requests, Request(request_id=name, prompt="x"))
    finished = Outcome(request_id="finished", status=OutcomeStatus.COMPLETED, text="29")
    await bus.store(bus.subjects.outcomes("finished"), finished)
    async with receiving(bus, text, max_held=1) as intake:
        intake.finish(await intake.arrived())
        assert await intake.arrived_names(1) == ["last"]
        await intake.until_unfinished(1)


async def test_a_waiting_request_whose_message_is_lost_fails_unless_it_has_an_outcome(
    bus: Bus, text: TextModel
) -> None:
    finished = Outcome(request_id="finished", status=OutcomeStatus.COMPLETED, text="29")
    async with receiving(bus, text, max_held=1) as intake:
        for name in ("first", "lost", "finished", "last"):
            await intake.send(name)
        await intake.until_waiting(3)
        await bus.store(bus.subjects.outcomes("finished"), finished)
        for sequence in (2, 3):
            await bus.js.delete_msg(bus.subjects.stream("REQUESTS"), sequence)
        intake.finish(await intake.arrived())
        assert await intake.status("lost") is OutcomeStatus.FAILED
        assert await intake.arrived_names(1) == ["last"]
    lost, kept = [await bus.outcome(name) for name in ("lost", "finished")]
    assert present(lost).error == LOST
    assert kept == finished


async def test_a_waiting_request_is_lost_if_its_deleted_stream_has_another_in_its_place(
    bus: Bus, text: TextModel
) -> None:
    async with receiving(bus, text, max_held=1) as intake:
        for name in ("first", "lost"):
            await intake.send(name)
        first = await intake.arrived()
        await intake.until_waiting(1)
        await bus.js.delete_stream(bus.subjects.stream("REQUESTS"))
        await bus.set_up()
        for name in ("new", "other"):
            await intake.send(name)
        await intake.until_waiting(3)
        intake.finish(first)
        assert await intake.status("lost") is OutcomeStatus.FAILED
        new = await intake.arrived()
        assert await intake.unfinished() == 2, "the acknowledgements were for messages of the deleted stream"
        intake.finish(new)
        assert await intake.arrived_names(1) == ["other"]


@pytest.mark.parametrize("is_same_scheduler", [True, False])
async def test_a_lost_request_that_is_sent_again_is_served(
    bus: Bus, text: TextModel, *, is_same_scheduler: bool
) -> None:
    async with receiving(bus, text, max_held=1) as intake:
        for name in ("first", "lost"):
            await intake.send(name)
        await intake.until_waiting(1)
        await bus.js.delete_msg(bus.subjects.stream("REQUESTS"), 2)
        intake.finish(await intake.arrived())
        assert await intake.status("lost") is OutcomeStatus.FAILED
        await intake.until_unfinished(0)
        if is_same_scheduler:
            await intake.send("lost")
            intake.finish(await intake.arrived())
            await intake.until_unfinished(0)
    if not is_same_scheduler:
        await intake.send("lost")
        async with receiving(bus, text, epoch=2) as successor:
            successor.finish(await successor.arrived())
            await successor.until_unfinished(0)
    assert await intake.status("lost") is OutcomeStatus.COMPLETED


async def test_a_large_waiting_request_is_read_again_and_answered_if_invalid(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text, max_held=1) as intake:
        await intake.send("first")
        await intake.send("large", "x" * 900_000)  # the server of the tests takes 1 MiB
        await intake.send("last")
        await intake.until_waiting(2)
        intake.finish(await intake.arrived())
        assert await intake.status("large") is OutcomeStatus.REJECTED
        assert await intake.arrived_names(1) == ["last"]
        assert (intake.totals.arrived, intake.totals.rejected) == (3, 1)


async def test_labels_are_rejected_where_no_token_ends_a_text(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text, stop_at_eos=False) as intake:
        labelled = Request(request_id="r", prompt="x", output_tokens=32, choices=["a", "b"])
        error = await intake.rejection(labelled)
        assert (error.field, "DILASERVE_STOP_AT_EOS" in error.message) == ("choices", True)


async def test_requests_that_earlier_workers_would_serve_wrong_are_rejected(bus: Bus, text: TextModel) -> None:
    contents: dict[str, Any] = {"pinned": pack_int32([5]), "choices": ["a", "b"]}
    contents |= {"presence_penalty": 1.0, "logit_bias": {5: 1.0}}
    async with receiving(bus, text) as intake:
        for field, value in contents.items():
            content: dict[str, Any] = {"prompt": "x", "output_tokens": 32, field: value}
            intake.worker_versions = [VERSION, FIRST_VERSION]
            assert (await intake.rejection(Request(request_id=f"early-{field}", **content))).field == field
            intake.worker_versions = [VERSION]
            await bus.store(bus.subjects.requests, Request(request_id=field, **content))
            assert (await intake.arrived()).request.request_id == field


async def test_requests_with_edits_are_rejected_while_earlier_workers_serve(bus: Bus, tiny_model_dir: Path) -> None:
    text = TextModel(tiny_model_dir, "tiny")
    text.card = replace(text.card, edit_threshold=1.0)
    async with receiving(bus, text, edit_threshold=0.5) as intake:
        intake.worker_versions = [FIRST_VERSION]
        for name, own in (("by-the-cell", None), ("own", 0.5), ("none", NO_EDITS)):
            await bus.store(bus.subjects.requests, Request(request_id=name, prompt="x", edit_threshold=own))
        assert await intake.status("by-the-cell") is OutcomeStatus.REJECTED
        assert await intake.status("own") is OutcomeStatus.REJECTED
        arrived = await intake.arrived()
        assert (arrived.request.request_id, arrived.edit_threshold) == ("none", NO_EDITS)


INVALID_TOKENS: list[tuple[str, Any, str]] = [
    ("pinned", b"abc", "pinned must be int32 little-endian"),
    ("pinned", pack_int32([FREE] * 33), "pinned has 33 positions; the output has 32 tokens"),
    ("pinned", pack_int32([5] * 32), "pinned leaves none of the 32 tokens to the model"),
    ("pinned", pack_int32([FREE, 100_000]), "pinned must be -1 or in 0..259, and not the mask token"),
    ("pinned", pack_int32([FREE, -2]), "pinned must be -1 or in 0..259, and not the mask token"),
    ("stop_token_ids", [260], "in 0..259"),
    ("stop", ["."] * (MAX_STOPS + 1), f"of length <= {MAX_STOPS}"),
]
NO_CANVASES: list[tuple[str, Any, str]] = [
    ("pattern", "[0-9]+", "it takes no form of the text; leave it out"),
    ("choices", ["a"], "it takes no labels; leave it out"),
    ("pinned", pack_int32([5]), "it takes no given tokens in the output; leave it out"),
    ("block_length", 99, f"blocks of {CANVAS} tokens, got 99; leave it out"),
]


async def test_invalid_tokens_are_rejected_by_name(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        await rejects_each(intake, INVALID_TOKENS, output_tokens=32)


async def test_work_that_canvases_do_not_support_is_rejected_by_name(bus: Bus, tmp_path: Path) -> None:
    text = TextModel(write_gemma_files(tmp_path / "gemma"), "gemma")
    async with receiving(bus, text) as intake:
        await rejects_each(intake, NO_CANVASES, output_tokens=2 * CANVAS, block_length=CANVAS)


async def rejects_each(intake: Intake, faults: Sequence[tuple[str, Any, str]], **usual: Any) -> None:
    """The intake rejects a request with any one of these fields, and names the field."""
    for number, (field, value, message) in enumerate(faults):
        error = await intake.rejection(Request(request_id=f"r-{number}", prompt="x", **usual | {field: value}))
        assert (error.field, message in error.message) == (field, True), error.message


async def test_an_outcome_has_the_tokens_and_confidences_of_its_text(bus: Bus, text: TextModel) -> None:
    ids = np.append(text.encode_prompt("yes"), [text.card.eos_token_id, 5]).astype(np.int32)
    confidences = np.linspace(0.5, 0.9, len(ids), dtype=np.float32)
    async with receiving(bus, text) as intake:
        for name, given in (("with", confidences), ("without", None)):
            await intake.send(name)
            finish = FinishRequest(await intake.arrived(), OutcomeStatus.COMPLETED, ids, None, None, confidences=given)
            intake.outcomes.finish(finish)
            await intake.status(name)
        found = [await bus.outcome(name) for name in ("with", "without")]
    assert [each and each.text for each in found] == ["yes", "yes"]
    assert [each and each.token_ids for each in found] == [ids[:3].tobytes(), b""]
    assert [each and each.confidences for each in found] == [confidences[:3].tobytes(), b""]


async def test_requests_of_different_keys_share_no_cached_prefix(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        for request_id, key in (("a", "key-1"), ("b", "key-2"), ("c", "key-1")):
            await bus.store(bus.subjects.requests, Request(request_id=request_id, prompt="x", key=key))
        salts = {arrived.request.request_id: arrived.salt for arrived in [await intake.arrived() for _ in range(3)]}
    assert salts["a"] == salts["c"] != salts["b"]


async def test_two_producers_may_use_the_same_id(bus: Bus, text: TextModel) -> None:
    """The limit of held requests is 1, so that the second one waits, and its message is read again."""
    async with receiving(bus, text, max_held=1) as intake:
        await intake.send("r")
        for producer in ("alice", "bob"):
            sent = Request(request_id="r", prompt=producer, key="bob")
            await bus.store(bus.subjects.producer_requests(producer), sent)
        found = {}
        for _ in range(3):
            arrived = await intake.arrived()
            found[arrived.request.request_id] = arrived.request.key
            intake.finish(arrived)
        assert found == {"r": "", "alice.r": "producer:alice", "bob.r": "producer:bob"}
        for name in found:
            assert await intake.status(name) is OutcomeStatus.COMPLETED
        await intake.until_unfinished(0)


INVALID_OF_PRODUCERS = [  # all with the id "r"
    b'{"request_id": "r", "priority": "high"}',
    b'{"request_id": "r", "prompt": ""}',
    rb'{"request_id": "r", "prompt": "a \ud83d b"}',
    rb'{"prompt": "\"request_id\": \"x\" \ude00", "request_id" : "r"}',
    b'{"request_id": "r", "prompt": "a',
    b'\xef\xbb\xbf{"request_id": "r", "prompt": "a",}',
    b"\x82\xaarequest_id\xa1r\xa6prompt\xa1\xff",
    b"\x82\xaarequest_id\xa1r\xa6prompt\xc4\x01x",  # bytes
    b"\x82\xa6prompt\xa1x\xaarequest_id\xa1r\n",
    b"\x82\xaarequest_id\xa1r\xa6prom",
    b"\x82\xaarequest_id\xd9\x01r\xa1x" + b"\x91" * 100_000,
    b"\x83\xaarequest_id\xa1r\xa6prompt\xa1x\xa5slo_s\xca\x7f\xc0\x00\x00",  # not a number
]


async def test_an_invalid_request_of_a_producer_is_rejected_there(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        outcomes = await bus.nc.subscribe(bus.subjects.outcomes(">"))
        for number, message in enumerate(INVALID_OF_PRODUCERS):
            await bus.js.publish(bus.subjects.producer_requests(f"alice{number}"), message)
            outcome = decode((await outcomes.next_msg(timeout=LIMIT_S)).data, Outcome)
            assert (outcome.request_id, outcome.status) == (f"alice{number}.r", OutcomeStatus.REJECTED), message
        await intake.until_unfinished(0)


@pytest.mark.parametrize("name", ["4711", '"order:12"', '"{a}[0]$"', '"%s"' % ("x" * 255)])
async def test_a_request_whose_invalid_id_a_subject_can_have_is_rejected_there(
    bus: Bus, text: TextModel, name: str
) -> None:
    async with receiving(bus, text) as intake:
        outcomes = await bus.nc.subscribe(bus.subjects.outcomes(name.strip('"')))
        for rest in (b', "prompt": "x"}', b","):
            await bus.js.publish(bus.subjects.requests, b'{"request_id": %s%s' % (name.encode(), rest))
            await intake.until_unfinished(0)
        outcome = decode((await outcomes.next_msg(timeout=LIMIT_S)).data, Outcome)
        assert (outcome.status, outcome.error and outcome.error.field) == (OutcomeStatus.REJECTED, "request_id")


ONE = pack_int32([1])
SAME_REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # as clients write them, and as they are meant
    "null": ({"prompt": "x", "stop": None, "slo_s": None, "key": None, "n": None}, {"prompt": "x"}),
    "text keys": ({"prompt": "x", "logit_bias": {"5": 1}}, {"prompt": "x", "logit_bias": {5: 1.0}}),
    "base64": ({"prompt_ids": b64encode(ONE).decode()}, {"prompt_ids": ONE}),
}


@pytest.mark.parametrize("encoder", [json.dumps, msgspec.msgpack.encode])
@pytest.mark.parametrize("name", SAME_REQUESTS)
def test_a_request_is_the_same_in_the_words_of_each_client(encoder: Callable[[Any], Any], name: str) -> None:
    sent, meant = SAME_REQUESTS[name]
    message = encoder({"request_id": "r", **sent})
    data = message.encode() if isinstance(message, str) else message
    assert decode_request("dilaserve.cell0.requests", data) == Request(request_id="r", **meant)


async def test_a_producer_may_give_its_repeated_message_the_same_id_on_the_bus(bus: Bus, text: TextModel) -> None:
    subject, message = bus.subjects.producer_requests("alice"), encode(Request(request_id="r", prompt="x"))
    outcomes = await bus.nc.subscribe(bus.subjects.outcomes("alice.r"))

    async def send() -> PubAck:
        return await bus.js.publish(subject, message, headers={"Nats-Msg-Id": "r"})

    async with receiving(bus, text) as intake:
        await send()
        intake.finish(await intake.arrived())
        await outcomes.next_msg(timeout=LIMIT_S)
        await eventually(send, lambda stored: not stored.duplicate)
        await outcomes.next_msg(timeout=LIMIT_S)


async def test_an_outcome_that_is_too_large_for_the_bus_fails_its_request(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        await intake.send("r")
        large = OutcomeError(message="x" * bus.nc.max_payload)
        no_tokens = np.zeros(0, dtype=np.int32)
        intake.outcomes.finish(
            FinishRequest(await intake.arrived(), OutcomeStatus.FAILED, no_tokens, None, None, large)
        )
        assert await intake.status("r") is OutcomeStatus.FAILED
        await intake.until_unfinished(0)
        outcome = present(await bus.outcome("r"))
    assert "; the bus takes " in present(outcome.error).message


INVALID_REQUESTS: list[tuple[bytes, str, str]] = [  # further fields, the field that the error names, the error
    (b"", "prompt", "exactly one of"),
    (b', "prompt": ""', "prompt", "must not be empty"),
    (b', "prompt": "%s"' % (b"x" * 600), "output_tokens", "at most 512"),
    (b', "prompt": "x", "output_tokens": 0', "output_tokens", ">= 1"),
    (b', "prompt": "x", "min_threshold": 2', "min_threshold", "<= 1"),
    (b', "prompt": "x", "age_s": -1', "age_s", ">= 0"),
    (b', "prompt": 7', "prompt", "Expected"),
    (b', "prompt": "<|mdm_mask|>"', "prompt", "mask token"),
    (b', "messages": [{"role": "wizard", "content": "x"}]', "messages[0].role", "wizard"),
    (rb', "prompt": "\ud83d\ude00 \\ud83d \ud83d"', "", r": \ud83d is half of a surrogate pair, such as a cut emoji"),
]


async def test_the_answer_to_an_invalid_request_names_the_field(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        outcomes = await bus.nc.subscribe(bus.subjects.outcomes("*"))
        for number, (content, field, message) in enumerate(INVALID_REQUESTS):
            await bus.js.publish(bus.subjects.requests, b'{"request_id": "r-%d"%s}' % (number, content))
            outcome = json.loads((await outcomes.next_msg(timeout=LIMIT_S)).data)
            assert (outcome["request_id"], outcome["status"]) == (f"r-{number}", "rejected")
            assert (outcome["error"].get("field") or "", message in outcome["error"]["message"]) == (field, True)
        await intake.until_unfinished(0)


async def test_a_byte_order_mark_and_the_role_of_a_developer_change_nothing(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        for role, mark in (("developer", b""), ("system", b"\xef\xbb\xbf")):
            sent = {"request_id": role, "messages": [{"role": role, "content": "x"}]}
            await bus.js.publish(bus.subjects.requests, mark + json.dumps(sent).encode())
        first, second = await intake.arrived(), await intake.arrived()
        assert first.prompt_ids.tolist() == second.prompt_ids.tolist()


async def test_a_request_of_a_producer_without_a_valid_name_is_discarded(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text) as intake:
        await bus.store(bus.subjects.producer_requests("A-B"), Request(request_id="r", prompt="x"))
        await intake.send("next")
        assert await intake.arrived_names(1) == ["next"]
        await intake.until_unfinished(1)


async def test_a_producer_cancels_its_own_request_only(bus: Bus, text: TextModel) -> None:
    async with receiving(bus, text, max_held=1) as intake:
        await intake.send("first")
        for producer in ("alice", "bob"):
            await bus.store(bus.subjects.producer_requests(producer), Request(request_id="r", prompt="x"))
        await intake.until_waiting(2)
        await bus.nc.publish(bus.subjects.cancel("alice.r"), b"")
        assert await intake.status("alice.r") is OutcomeStatus.CANCELLED
        intake.finish(await intake.arrived())
        assert await intake.arrived_names(1) == ["bob.r"]


@pytest.mark.parametrize("restarted", [False, True], ids=["same-scheduler", "next-scheduler"])
async def test_a_producer_that_sends_a_request_again_receives_its_outcome_again(
    bus: Bus, text: TextModel, *, restarted: bool
) -> None:
    requests, name = bus.subjects.producer_requests("alice"), "alice.r"
    request = Request(request_id="r", prompt="x", key="alice")
    async with receiving(bus, text) as intake:
        await bus.store(requests, request)
        intake.finish(await intake.arrived())
        await intake.until_unfinished(0)
        if not restarted:
            outcomes = await bus.nc.subscribe(bus.subjects.outcomes("alice.*"))
            await bus.store(requests, request)
            outcome = decode((await outcomes.next_msg(timeout=LIMIT_S)).data, Outcome)
            assert (outcome.request_id, outcome.status) == (name, OutcomeStatus.COMPLETED)
            await intake.until_unfinished(0)
            return
    outcomes = await bus.nc.subscribe(bus.subjects.outcomes("alice.*"))
    await bus.store(requests, request)  # before the next scheduler starts, which then reads the stored outcome
    async with receiving(bus, text) as intake:
        await bus.store(requests, Request(request_id="other", prompt="x"))
        assert decode((await outcomes.next_msg(timeout=LIMIT_S)).data, Outcome).request_id == name
        assert await intake.arrived_names(1) == ["alice.other"]
        await bus.store(requests, replace(request, request_id="r2"))
        intake.finish(await intake.arrived())
        assert decode((await outcomes.next_msg(timeout=LIMIT_S)).data, Outcome).request_id == "alice.r2"


async def test_the_first_outcome_of_a_producers_request_stays_and_is_sent_again(bus: Bus, text: TextModel) -> None:
    """A request that ended before a restart, and was sent again after it, is computed again."""
    first = Outcome(request_id="alice.r", status=OutcomeStatus.COMPLETED, text="the first text")
    await bus.store(bus.subjects.outcomes("alice.r"), first)
    async with receiving(bus, text) as intake:
        outcomes = await bus.nc.subscribe(bus.subjects.outcomes("alice.*"))
        await bus.store(bus.subjects.producer_requests("alice"), Request(request_id="r", prompt="x"))
        intake.finish(await intake.arrived())
        assert decode((await outcomes.next_msg(timeout=LIMIT_S)).data, Outcome).text == "the first text"
        await intake.until_unfinished(0)


async def test_a_reply_of_the_bus_does_not_cancel_a_request(bus: Bus, text: TextModel) -> None:
    """Any user of the bus can have the server send a reply to any subject."""
    async with receiving(bus, text, max_held=1) as intake:
        for name in ("first", "r", "last"):
            await intake.send(name)
        await intake.until_waiting(2)
        stream, cancels = bus.subjects.stream("REQUESTS"), bus.subjects.cancel("r")
        replies = await bus.nc.subscribe(cancels)
        await bus.nc.publish(bus.subjects.arrivals, b"{}", reply=cancels)  # an acknowledgement
        await bus.nc.publish(
            f"$JS.API.DIRECT.GET.{bus.subjects.stream('OUTCOMES')}.none", b"", reply=cancels
        )  # a status
        await bus.nc.publish(f"$JS.API.STREAM.INFO.{stream}", b"", reply=cancels)
        for _ in range(3):
            await replies.next_msg(timeout=LIMIT_S)
        await bus.nc.publish(bus.subjects.cancel("last"), b"")  # after the replies
        assert await intake.status("last") is OutcomeStatus.CANCELLED
        intake.finish(await intake.arrived())
        assert await intake.arrived_names(1) == ["r"]


@pytest.mark.parametrize("name", ["check_tokens", "encode_request", "fit_output", "given_tokens", "finish"])
async def test_a_request_whose_data_raise_an_error_fails_alone(bus: Bus, tiny_model_dir: Path, name: str) -> None:
    class Broken(TextModel):
        """Raises an error for the request that is bad now."""

        is_bad = False

        def __getattribute__(self, attribute: str) -> Any:
            if attribute == name and super().__getattribute__("is_bad"):
                raise IndexError("list index out of range")
            return super().__getattribute__(attribute)

    broken = Broken(tiny_model_dir, "tiny")
    async with receiving(bus, broken) as intake:
        ends = name in ("given_tokens", "finish")  # the request has run before
        broken.is_bad = not ends
        await intake.send("bad")
        if ends:
            arrived = await intake.arrived()
            broken.is_bad = True
            intake.finish(arrived)
        assert await intake.status("bad") is OutcomeStatus.FAILED
        broken.is_bad = False
        await intake.send("good")
        intake.finish(await intake.arrived())
        assert await intake.status("good") is OutcomeStatus.COMPLETED
        await intake.until_unfinished(0)
