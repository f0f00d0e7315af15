"""A real NATS server with the generated users allows each user its subjects, and refuses it all others."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import DeliverPolicy
from nats.js.errors import NotFoundError

from dilaserve.stack.bus_users import authorization, new_passwords, user_url
from dilaserve.stack.probes import nats_answers
from shared.bus.client import Bus
from shared.bus.stream_reader import read_stream
from shared.bus.subjects import Subjects, buckets, object_stores, stream_names, streams
from shared.bus.users import BusUser, inbox_prefix
from shared.messages.requests import Outcome
from tests.support.nats import NatsServer, fail_to_connect, started_server

CELL = "cell0"
NAMES = Subjects(CELL)
OWNERS = ("alice", "bob")
LIMIT_S = 10.0
REQUESTS, OUTCOMES = f"REQUESTS-{CELL}", f"OUTCOMES-{CELL}"
LIMITED = [*sorted(set(BusUser) - {BusUser.OPERATOR}), "alice"]
PASSWORDS = new_passwords(OWNERS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    quoted = {user: json.dumps(password) for user, password in PASSWORDS.items()}
    with started_server(tmp_path_factory.mktemp("nats"), more=authorization(CELL, quoted)) as started:
        yield started


def url(server: NatsServer, user: str) -> str:
    return user_url(user, PASSWORDS[user], f"127.0.0.1:{server.port}")


class Session:
    """A user's connection, and what the server refuses it."""

    def __init__(self) -> None:
        self.nc = Client()
        self._errors = asyncio.Queue[str]()

    async def open(self, address: str) -> None:
        prefix = "_INBOX_alice" if "alice:" in address else inbox_prefix(address)
        await self.nc.connect(address, error_cb=self._receive, inbox_prefix=prefix)

    async def _receive(self, error: Exception) -> None:
        self._errors.put_nowait(str(error).lower())

    async def may_publish(self, subject: str, data: bytes = b"{}") -> bool:
        await self.nc.publish(subject, data, reply=self.nc.new_inbox())
        return await self._is_allowed(f'publish to "{subject.lower()}"')

    async def may_subscribe(self, subject: str) -> bool:
        subscription = await self.nc.subscribe(subject)
        is_allowed = await self._is_allowed(f'subscription to "{subject.lower()}"')
        await subscription.unsubscribe()
        return is_allowed

    async def _is_allowed(self, act: str) -> bool:
        for _ in range(2):  # the first PING may overtake what the client has yet to send
            await self.nc.flush()
        if self._errors.empty():
            return True
        assert f"permissions violation for {act}" in self._errors.get_nowait()
        return False

    def has_errors(self) -> bool:
        return not self._errors.empty()


@pytest.fixture
async def cell(server: NatsServer) -> AsyncIterator[Bus]:
    """The scheduler's connection; it has set up the streams."""
    bus = await Bus.connect(url(server, BusUser.SCHEDULER), CELL, name="scheduler")
    await bus.set_up()
    yield bus
    await bus.close()


@pytest.fixture
async def session(server: NatsServer, user: str, cell: Bus) -> AsyncIterator[Session]:
    opened = Session()
    await opened.open(url(server, user))
    yield opened
    await opened.nc.close()


READING = {BusUser.GATEWAY, BusUser.PRODUCER}
DIRECT = f"$JS.API.DIRECT.GET.{OUTCOMES}"
SENDERS: dict[str, set[str]] = {  # of each subject, all users that may publish there
    NAMES.requests: {BusUser.GATEWAY, BusUser.PRODUCER},
    NAMES.cancel("r"): {BusUser.GATEWAY, BusUser.PRODUCER},
    NAMES.outcomes("r"): {BusUser.SCHEDULER},
    NAMES.producer_requests("alice"): {"alice"},
    NAMES.cancel("alice.r"): {"alice", BusUser.GATEWAY},
    NAMES.guesses("alice.r"): {BusUser.WORKER},
    **{NAMES.producer_requests(name): set() for name in ("bob", "carol")},
    NAMES.cancel("bob.r"): {BusUser.GATEWAY},
    **{kind(f"{name}.r"): {BusUser.SCHEDULER} for kind in (NAMES.outcomes, NAMES.progress) for name in OWNERS},
    NAMES.steps("i"): {BusUser.SCHEDULER},
    NAMES.step_results("i"): {BusUser.WORKER},
    NAMES.control("i"): {BusUser.RECONFIGURATOR},
    NAMES.launch("n"): {BusUser.RECONFIGURATOR},
    NAMES.unfinished: {BusUser.GATEWAY},
    NAMES.config: {BusUser.SCHEDULER},
    NAMES.health("scheduler"): {BusUser.SCHEDULER},
    f"$KV.{NAMES.leases_bucket}.scheduler": {BusUser.SCHEDULER},
    f"$KV.{NAMES.instances_bucket}.i": {BusUser.WORKER},
    "dilaserve.other.requests": set(),
    f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.scheduler-1": {BusUser.SCHEDULER},
    f"$JS.API.CONSUMER.CREATE.{REQUESTS}": set(),
    f"$JS.API.CONSUMER.CREATE.{OUTCOMES}.c.{NAMES.outcomes('alice.*')}": {BusUser.GATEWAY},
    f"$JS.API.STREAM.MSG.GET.{REQUESTS}": {BusUser.SCHEDULER},
    f"$JS.API.STREAM.MSG.GET.{OUTCOMES}": {BusUser.PRODUCER},
    DIRECT: {*READING, BusUser.SCHEDULER},
    # The sender chooses the subject of the reply.
    **{f"{DIRECT}.{NAMES.outcomes(name)}": {*READING, BusUser.SCHEDULER} for name in ("r", "bob.r", "alice.r")},
    f"$JS.API.DIRECT.GET.KV_{NAMES.models_bucket}.$KV.{NAMES.models_bucket}.forged": set(),
}


@pytest.mark.parametrize("user", LIMITED)
async def test_only_its_senders_may_publish_on_a_subject(session: Session, user: str) -> None:
    assert {subject for subject in SENDERS if await session.may_publish(subject)} == {
        subject for subject, senders in SENDERS.items() if user in senders
    }


@pytest.mark.parametrize("user", LIMITED)
async def test_no_service_may_delete_a_stream_and_only_files_may_be_purged(session: Session, user: str) -> None:
    for stream in stream_names(NAMES):
        for call in ("STREAM.DELETE", "STREAM.MSG.DELETE"):
            assert not await session.may_publish(f"$JS.API.{call}.{stream}")
        may_purge = user == BusUser.GATEWAY and stream == f"OBJ_{NAMES.files_store}"
        assert await session.may_publish(f"$JS.API.STREAM.PURGE.{stream}") == may_purge


@pytest.mark.parametrize("user", sorted({*LIMITED} - {BusUser.GATEWAY, BusUser.SCHEDULER, BusUser.RECONFIGURATOR}))
async def test_only_trusted_users_can_have_the_server_deliver_messages_that_they_wrote(
    session: Session, user: str
) -> None:
    written = {stream.name: subject for stream in streams(NAMES) for subject in stream.subjects or ()}
    written |= {f"KV_{bucket.bucket}": f"$KV.{bucket.bucket}.key" for bucket in buckets(NAMES)}
    written |= {f"OBJ_{store.bucket}": f"$O.{store.bucket}.M.name" for store in object_stores(NAMES)}
    assert set(written) == stream_names(NAMES)
    calls = ("DIRECT.GET.{}", "CONSUMER.CREATE.{}", "CONSUMER.DURABLE.CREATE.{}.any", "CONSUMER.MSG.NEXT.{}.any")
    for stream, subject in written.items():
        if await session.may_publish(subject.replace("*", "any")):
            assert not any([await session.may_publish(f"$JS.API.{call.format(stream)}") for call in calls])


MESSAGES = (NAMES.outcomes, NAMES.progress, NAMES.guesses)
READERS: dict[str, set[str]] = {  # of each subject, all users that may subscribe to it
    **{NAMES.outcomes(each): {*READING} for each in ("r", "*")},
    **{kind("alice.r"): {"alice"} for kind in MESSAGES} | {NAMES.outcomes("alice.r"): {"alice", BusUser.GATEWAY}},
    **{kind("bob.*"): set() for kind in MESSAGES} | {NAMES.outcomes("bob.*"): {BusUser.GATEWAY}},
    **{kind(">"): {*READING} for kind in MESSAGES},  # the server takes `>` for one of the tokens that are `*`
    **{f"_INBOX_{user}.id.1": {user} for user in LIMITED},
    **{subject: set() for subject in (">", "dilaserve.>", "_INBOX_bob.>", "_INBOX_operator.>")},
    "_INBOX.>": {BusUser.PRODUCER},
    **{subject: set() for subject in (NAMES.requests, f"dilaserve.{CELL}.*.bob.*")},
    **{NAMES.producer_requests(name): {BusUser.GATEWAY} for name in OWNERS},
    NAMES.steps("i"): {BusUser.GATEWAY},
    NAMES.cancel(">"): {BusUser.GATEWAY, BusUser.SCHEDULER},
    f"$KV.{NAMES.instances_bucket}.>": {BusUser.GATEWAY, BusUser.RECONFIGURATOR, BusUser.SCHEDULER},
}


@pytest.mark.parametrize("user", LIMITED)
async def test_only_its_readers_may_subscribe_to_a_subject(session: Session, user: str) -> None:
    assert {subject for subject in READERS if await session.may_subscribe(subject)} == {
        subject for subject, readers in READERS.items() if user in readers
    }


@pytest.mark.parametrize("user", [BusUser.WORKER])
async def test_a_forged_outcome_reaches_neither_a_producer_nor_the_stream(
    server: NatsServer, session: Session, cell: Bus
) -> None:
    producer = await nats.connect(url(server, BusUser.PRODUCER))
    outcomes = await producer.subscribe(f"dilaserve.{CELL}.outcomes.*")
    await producer.flush()
    assert not await session.may_publish(cell.subjects.outcomes("r1"), b'{"request_id": "r1", "status": "completed"}')
    await cell.nc.publish(f"dilaserve.{CELL}.outcomes.r2", b"{}")
    assert (await outcomes.next_msg(timeout=5)).subject.endswith(".r2")
    with pytest.raises(NotFoundError):
        await cell.js.get_last_msg(OUTCOMES, f"dilaserve.{CELL}.outcomes.r1", direct=True)
    await producer.close()


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        (BusUser.WORKER, f"$JS.API.STREAM.INFO.STEPS-{CELL}"),
        (BusUser.WORKER, f"dilaserve.{CELL}.step-results.i1"),
        (BusUser.STATUS, "$JS.API.INFO"),
        (BusUser.PRODUCER, f"dilaserve.{CELL}.requests"),
    ],
)
async def test_a_reply_of_the_server_deletes_nothing(session: Session, cell: Bus, user: BusUser, subject: str) -> None:
    """The server does not check where a user lets it send a reply."""
    kept = cell.subjects.outcomes(f"kept-{user}")
    await cell.js.publish(kept, b"{}")
    for call in ("DELETE", "PURGE"):
        await session.nc.publish(subject, b"{}", reply=f"$JS.API.STREAM.{call}.{OUTCOMES}")
    await session.nc.request(subject, b"{}", timeout=LIMIT_S)  # after the others
    assert (await cell.js.get_last_msg(OUTCOMES, kept, direct=True)).data == b"{}"
    assert not session.has_errors()


@pytest.mark.parametrize("user", [BusUser.GATEWAY])
async def test_a_scheduler_reads_the_claims_that_a_gateway_stores(session: Session, cell: Bus) -> None:
    bucket = cell.subjects.claims_bucket
    await (await session.nc.jetstream().key_value(bucket)).put("r1", b"claim")
    stored = await read_stream(cell, f"KV_{bucket}", f"$KV.{bucket}.>", deliver_policy=DeliverPolicy.ALL)
    assert [msg.data for msg in stored] == [b"claim"]
    assert not session.has_errors()


@pytest.mark.parametrize("user", [BusUser.PRODUCER])
async def test_a_producer_sends_requests_and_reads_stored_outcomes(session: Session, cell: Bus) -> None:
    sent = await session.nc.jetstream().publish(f"dilaserve.{CELL}.requests", b"{}")
    assert sent.stream == REQUESTS
    await cell.js.publish(cell.subjects.outcomes("r3"), b"{}")
    stored = await session.nc.jetstream().get_last_msg(OUTCOMES, cell.subjects.outcomes("r3"))
    assert stored.data == b"{}"
    assert not session.has_errors()


@pytest.mark.parametrize("user", ["alice"])
async def test_a_named_producer_sends_requests_and_receives_its_outcomes(session: Session, cell: Bus) -> None:
    outcomes = await session.nc.subscribe(f"dilaserve.{CELL}.outcomes.alice.*")
    sent = await session.nc.jetstream().publish(f"dilaserve.{CELL}.requests.alice", b"{}")
    assert sent.stream == REQUESTS
    for producer in ("bob", "alice"):
        await cell.js.publish(cell.subjects.outcomes(f"{producer}.r"), producer.encode())
    assert (await outcomes.next_msg(timeout=LIMIT_S)).data == b"alice"
    assert not session.has_errors()


@pytest.mark.parametrize("user", ["alice"])
async def test_a_reply_that_a_named_producer_redirects_is_no_outcome(session: Session, cell: Bus) -> None:
    """The server sends its acknowledgement to a subject that `alice` names, with a content that it does not choose."""
    text = b'{"request_id": "bob.r", "status": "completed", "text": "forged"}'
    forged = cell.subjects.outcomes("bob.forged")
    await session.nc.publish(f"dilaserve.{CELL}.requests.alice", text, reply=forged)
    await session.nc.jetstream().publish(f"dilaserve.{CELL}.requests.alice", b"{}")  # after it
    stored = (await cell.js.get_last_msg(OUTCOMES, forged, direct=True)).data
    assert b"forged" not in (stored or b"")
    assert await cell.last("OUTCOMES", forged, Outcome) is None
    assert not session.has_errors()


async def test_the_server_answers_users_only_and_with_their_password(server: NatsServer) -> None:
    address = f"127.0.0.1:{server.port}"
    assert await nats_answers(url(server, BusUser.STATUS))
    assert not await nats_answers(f"nats://{address}")
    assert not await nats_answers(user_url(BusUser.STATUS, PASSWORDS[BusUser.WORKER], address))


async def test_a_wrong_password_is_logged_once_without_the_password(
    server: NatsServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = user_url(BusUser.WORKER, "a-wrong-password", f"127.0.0.1:{server.port}")
    await fail_to_connect(address, CELL, monkeypatch)
    logged = capsys.readouterr().out
    assert logged.count("the bus refuses the user or the password") == 1
    assert "a-wrong-password" not in logged


@pytest.mark.slow
async def test_a_user_connects_again_after_a_restart_of_the_server(server: NatsServer, cell: Bus) -> None:
    """The last test of the module, because it restarts the server."""
    server.stop(kill=True)
    server.start()
    await cell.set_up()
    assert (await cell.js.publish(cell.subjects.outcomes("r4"), b"{}")).stream == OUTCOMES
