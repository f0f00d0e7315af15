"""A real NATS server with the generated users refuses what each user must not do."""

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
from shared.bus.users import BusUser, inbox_prefix
from shared.messages.requests import Outcome
from tests.support.nats import NatsServer, fail_to_connect, started_server

CELL = "cell0"
LIMIT_S = 10.0  # for an error of the server
REQUESTS, OUTCOMES = f"REQUESTS-{CELL}", f"OUTCOMES-{CELL}"
LIMITED = [*sorted(set(BusUser) - {BusUser.OPERATOR}), "alice"]
PASSWORDS = new_passwords(["alice", "bob"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    quoted = {user: json.dumps(password) for user, password in PASSWORDS.items()}
    with started_server(tmp_path_factory.mktemp("nats"), more=authorization(CELL, quoted)) as started:
        yield started


def url(server: NatsServer, user: str) -> str:
    return user_url(user, PASSWORDS[user], f"127.0.0.1:{server.port}")


class Session:
    """A user's connection and the errors that the server sends it."""

    def __init__(self) -> None:
        self.nc = Client()
        self._errors = asyncio.Queue[str]()

    async def open(self, address: str) -> None:
        prefix = "_INBOX_alice" if "alice:" in address else inbox_prefix(address)
        await self.nc.connect(address, error_cb=self._receive, inbox_prefix=prefix)

    async def _receive(self, error: Exception) -> None:
        self._errors.put_nowait(str(error).lower())

    async def refusal(self) -> str:
        """The next error. Raises: TimeoutError if there is none."""
        async with asyncio.timeout(LIMIT_S):
            return await self._errors.get()

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


FORBIDDEN = [
    *((user, f"dilaserve.{CELL}.outcomes.r1") for user in LIMITED if user != BusUser.SCHEDULER),
    *((user, f"dilaserve.{CELL}.control.i1") for user in LIMITED if user != BusUser.RECONFIGURATOR),
    *((user, f"$JS.API.STREAM.DELETE.{REQUESTS}") for user in LIMITED),
    *((user, f"$JS.API.STREAM.PURGE.{OUTCOMES}") for user in LIMITED),
    *((user, f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.scheduler-1") for user in LIMITED if user != BusUser.SCHEDULER),
    *((user, f"$JS.API.CONSUMER.CREATE.{REQUESTS}") for user in LIMITED),
    (BusUser.WORKER, f"$JS.API.STREAM.MSG.GET.{OUTCOMES}"),
    (BusUser.WORKER, f"$JS.API.DIRECT.GET.{OUTCOMES}.dilaserve.{CELL}.outcomes.r1"),
    (BusUser.WORKER, f"$JS.API.DIRECT.GET.KV_models-{CELL}.$KV.models-{CELL}.forged"),  # a reply of its own making
    (BusUser.WORKER, f"$KV.leases-{CELL}.scheduler"),
    *((user, f"dilaserve.{CELL}.config") for user in LIMITED if user != BusUser.SCHEDULER),
    (BusUser.PREDICTOR, f"dilaserve.{CELL}.requests"),
    (BusUser.STATUS, f"dilaserve.{CELL}.requests"),
    (BusUser.GATEWAY, f"dilaserve.{CELL}.steps.i1"),
    *(
        ("alice", f"dilaserve.{CELL}.{subject}")
        for subject in ("requests", "requests.bob", "cancel.r1", "cancel.bob.r1", "steps.i1", "launch.n1")
    ),
    *(("alice", f"dilaserve.{CELL}.{kind}.bob.r1") for kind in ("outcomes", "progress")),
    *(("alice", f"$JS.API.STREAM.MSG.GET.{stream}") for stream in (OUTCOMES, REQUESTS)),
    *(
        ("alice", f"$JS.API.DIRECT.GET.{OUTCOMES}.dilaserve.{CELL}.outcomes.{whose}.r1")
        for whose in ("bob", "alice")  # it chooses the subject of the reply
    ),
    ("alice", f"$JS.API.CONSUMER.CREATE.{OUTCOMES}.c.dilaserve.{CELL}.outcomes.alice.*"),
    ("alice", f"dilaserve.{CELL}.outcomes.alice.r1"),
    ("alice", f"$KV.leases-{CELL}.scheduler"),
]


@pytest.mark.parametrize("user", LIMITED)
async def test_a_user_cannot_publish_for_others(session: Session, user: str) -> None:
    for subject in [subject for limited, subject in FORBIDDEN if limited == user]:
        await session.nc.publish(subject, b"{}", reply=session.nc.new_inbox())
        assert f'permissions violation for publish to "{subject.lower()}"' in await session.refusal()


READERS = {BusUser.GATEWAY, BusUser.PRODUCER}
UNREADABLE = [
    *((user, f"dilaserve.{CELL}.outcomes.*") for user in LIMITED if user not in READERS),
    *((user, f"dilaserve.{CELL}.requests") for user in LIMITED),
    *((user, subject) for user in LIMITED for subject in (">", "dilaserve.>", "_INBOX_operator.>")),
    *((user, "_INBOX_gateway.>") for user in LIMITED if user != BusUser.GATEWAY),
    *((user, f"dilaserve.{CELL}.steps.i1") for user in LIMITED if user != BusUser.GATEWAY),
    *(
        ("alice", f"dilaserve.{CELL}.{kind}.{whose}")
        for kind in ("outcomes", "progress", "guesses")
        for whose in ("bob.*", "*", ">")
    ),
    *(("alice", f"dilaserve.{CELL}.{kind}") for kind in ("requests.bob", "requests.alice", "*.bob.*", "cancel.>")),
    *(("alice", f"_INBOX{whose}.>") for whose in ("", "_bob", "_producer")),
    ("alice", f"$KV.instances-{CELL}.>"),
]


@pytest.mark.parametrize("user", LIMITED)
async def test_a_user_cannot_read_the_messages_of_others(session: Session, user: str) -> None:
    for subject in [subject for limited, subject in UNREADABLE if limited == user]:
        await session.nc.subscribe(subject)
        assert f'permissions violation for subscription to "{subject.lower()}"' in await session.refusal()


@pytest.mark.parametrize("user", [BusUser.WORKER])
async def test_a_forged_outcome_reaches_neither_a_producer_nor_the_stream(
    server: NatsServer, session: Session, cell: Bus
) -> None:
    producer = await nats.connect(url(server, BusUser.PRODUCER))
    outcomes = await producer.subscribe(f"dilaserve.{CELL}.outcomes.*")
    await producer.flush()
    await session.nc.publish(f"dilaserve.{CELL}.outcomes.r1", b'{"request_id": "r1", "status": "completed"}')
    assert "permissions violation for publish" in await session.refusal()
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
