"""API keys: required, checked, limited, revoked."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import AsyncEngine

from dilaserve.cli import run
from dilaserve.load.client import open_client, served_model
from dilaserve.stack.data_dir import Addresses, write_addresses
from services.gateway.admission import api_keys
from services.gateway.settings import GatewaySettings
from shared.database.key_store import create_key, read_keys, revoke_key
from shared.database.schema import open_database
from shared.errors import BadInput
from shared.text import TextModel
from tests.support.gateway import LIMIT_S, RunningGateway, ready, running
from tests.support.postgres import PostgresServer
from tests.support.scheduler import AnsweringScheduler
from tests.support.stack import dilaserve
from tests.support.waiting import eventually, reached, until

CHAT: dict[str, Any] = {"model": "tiny-llada", "messages": [{"role": "user", "content": "How many pears?"}]}
PATH = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def frequent_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "MIN_READ_INTERVAL_S", 0.01)
    monkeypatch.setattr(api_keys, "REFRESH_S", 0.1)


@pytest.fixture
async def engine(postgres: PostgresServer) -> AsyncIterator[AsyncEngine]:
    engine = open_database(postgres.url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def guarded(
    postgres: PostgresServer, settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler
) -> AsyncIterator[RunningGateway]:
    """A gateway that requires API keys."""
    async with ready(msgspec.structs.replace(settings, auth=True, database_url=postgres.url), text) as gateway:
        yield gateway


def bearing(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def keys_command(postgres: PostgresServer, *arguments: str) -> str:
    """The output of `dilaserve keys`."""
    done = await asyncio.to_thread(dilaserve, "keys", *arguments, "--database-url", postgres.url)
    assert done.returncode == 0, done.stderr
    return done.stdout


def error_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


async def complete(gateway: RunningGateway, secret: str, **fields: Any) -> httpx.Response:
    return await gateway.http.post(PATH, json=CHAT | fields, headers=bearing(secret))


async def test_without_a_valid_key_every_route_is_unauthorized(guarded: RunningGateway) -> None:
    without_key = await guarded.http.post(PATH, json=CHAT)
    assert without_key.headers["www-authenticate"] == "Bearer"
    paths = (await guarded.http.get("/openapi.json")).json()["paths"]
    assert {"/v1/responses", "/v1/messages", "/v1/models", "/v1/files", "/cluster"} <= set(paths)
    tried = [
        await guarded.http.request(method, path)
        for path, methods in paths.items()
        for method in methods
        if path not in ("/health", "/ready", "/metrics")
    ]
    for reply in (without_key, await complete(guarded, "dls-guessed"), *tried):
        assert error_of(reply) == (401, "invalid_api_key"), reply.url


async def test_a_key_in_anthropics_header_authorizes_requests(guarded: RunningGateway, engine: AsyncEngine) -> None:
    _, secret = await create_key(engine, "anthropic", None, None, 0)
    body = CHAT | {"max_tokens": 8}
    served = await guarded.http.post("/v1/messages", json=body, headers={"x-api-key": secret})
    refused = await guarded.http.post("/v1/messages", json=body, headers={"x-api-key": "dls-guessed"})
    absent = await guarded.http.post("/v1/messages", json=body)
    assert served.status_code == 200
    for reply in (refused, absent):
        assert error_of(reply) == (401, "invalid_api_key")
        assert reply.json()["error"]["type"] == "authentication_error"
    assert "x-api-key: KEY" in absent.json()["error"]["message"]


async def test_a_created_key_authorizes_requests(
    guarded: RunningGateway, postgres: PostgresServer, engine: AsyncEngine
) -> None:
    await create_key(engine, "other")
    options = ("--max-priority", "3", "--operator", "--json")
    made = json.loads(await keys_command(postgres, "create", "alice", *options))
    assert (await complete(guarded, made["secret"])).status_code == 200
    assert (await complete(guarded, made["secret"], priority=3)).status_code == 200
    names = {key["name"] for key in (await guarded.http.get("/keys", headers=bearing(made["secret"]))).json()["data"]}
    assert {"alice", "other"} <= names  # as an operator


@pytest.mark.parametrize("auth", [False, True])
def test_a_key_of_a_stack_that_needs_none_is_made_with_a_note(
    auth: bool, postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unused = "nats://127.0.0.1:1"
    addresses = Addresses(url="", nats_url=unused, nats_urls={}, database_url=postgres.url, auth=auth)
    write_addresses(tmp_path, addresses)
    assert run(["keys", "create", "bob", "--data-dir", str(tmp_path)]) == 0
    assert ("serves requests without a key, too" in capsys.readouterr().out) is not auth


async def test_a_request_has_at_most_the_keys_maximum_as_priority(
    guarded: RunningGateway, engine: AsyncEngine, scheduler: AnsweringScheduler
) -> None:
    for maximum, given in ((-5, -5), (3, 0)):
        _, secret = await create_key(engine, "low", None, None, maximum)
        assert (await complete(guarded, secret)).status_code == 200
        assert scheduler.requests[-1].priority == given
        assert (await complete(guarded, secret, priority=maximum)).status_code == 200
        above = await complete(guarded, secret, priority=maximum + 1)
        assert error_of(above) == (403, "priority_too_high")
        assert above.json()["error"]["param"] == "priority"


async def test_bench_finds_the_model_by_the_key_alone(guarded: RunningGateway, engine: AsyncEngine) -> None:
    _, secret = await create_key(engine, "bench", None, None, 0)
    async with open_client(guarded.url, httpx.Timeout(LIMIT_S), secret) as client:
        assert await served_model(client) == "tiny-llada"
    async with open_client(guarded.url, httpx.Timeout(LIMIT_S), "") as client:
        with pytest.raises(BadInput, match="DILASERVE_API_KEY"):
            await served_model(client)


async def test_requests_beyond_the_rate_limit_are_rejected(guarded: RunningGateway, engine: AsyncEngine) -> None:
    _, secret = await create_key(engine, "hasty", 2, None, 0)
    replies = [await complete(guarded, secret) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert 1 <= int(replies[2].headers["retry-after"]) <= 30


async def test_choices_that_a_keys_rate_never_allows_are_refused_by_name(
    guarded: RunningGateway, engine: AsyncEngine
) -> None:
    _, secret = await create_key(engine, "several", 5)
    never = await complete(guarded, secret, n=6)
    assert (error_of(never), never.json()["error"]["param"]) == ((400, "invalid_value"), "n")
    for prompts in ({"max_tokens": 0, "echo": True}, {"max_tokens": 8}):
        body = {"model": "tiny-llada", "prompt": list("abcdef"), **prompts}
        listed = await guarded.http.post("/v1/completions", json=body, headers=bearing(secret))
        assert (error_of(listed), listed.json()["error"]["param"]) == ((400, "invalid_value"), "prompt")
    assert (await complete(guarded, secret, n=2)).status_code == 200


async def test_choices_beyond_the_rate_limit_leave_the_rest_of_it(guarded: RunningGateway, engine: AsyncEngine) -> None:
    _, secret = await create_key(engine, "several", 4)
    replies = [await complete(guarded, secret, n=n) for n in (2, 4, 1)]
    assert [reply.status_code for reply in replies] == [200, 429, 200]
    assert 45 <= int(replies[1].headers["retry-after"]) <= 46  # until all of a minute's requests are allowed


async def test_choices_that_a_key_never_allows_in_flight_are_refused_by_name(
    guarded: RunningGateway, engine: AsyncEngine, scheduler: AnsweringScheduler
) -> None:
    _, secret = await create_key(engine, "two at once", None, 2)
    never = await complete(guarded, secret, n=3)
    assert (error_of(never), never.json()["error"]["param"]) == ((400, "invalid_value"), "n")
    assert not scheduler.requests
    assert (await complete(guarded, secret, n=2)).status_code == 200


async def test_uploads_and_batches_count_against_the_rate_limit(guarded: RunningGateway, engine: AsyncEngine) -> None:
    _, secret = await create_key(engine, "uploading", 2)
    sent: dict[str, Any] = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "batch"}}
    batch = {"input_file_id": "file-none", "endpoint": PATH, "completion_window": "24h"}
    uploads = [await guarded.http.post("/v1/files", headers=bearing(secret), **sent) for _ in range(3)]
    assert [reply.status_code for reply in uploads] == [200, 200, 429]
    assert uploads[2].headers["retry-after"]
    created = await guarded.http.post("/v1/batches", headers=bearing(secret), json=batch)
    assert error_of(created) == (429, "rate_limit_exceeded")


async def test_the_tokenizer_counts_against_the_rate_limit(guarded: RunningGateway, engine: AsyncEngine) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/tokenize": CHAT,
        "/detokenize": {"model": "tiny-llada", "tokens": [65]},
        "/v1/messages/count_tokens": CHAT,
    }
    for path, body in bodies.items():
        _, secret = await create_key(engine, "counting", 2)
        replies = [await guarded.http.post(path, headers=bearing(secret), json=body) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429], path
        assert error_of(replies[2]) == (429, "rate_limit_exceeded")


async def test_a_key_cannot_cancel_a_request_of_another(
    guarded: RunningGateway, engine: AsyncEngine, scheduler: AnsweringScheduler, hold: asyncio.Event
) -> None:
    _, alice = await create_key(engine, "alice")
    _, bob = await create_key(engine, "bob")
    _, operator = await create_key(engine, "operator", operator=True)
    held = asyncio.create_task(complete(guarded, alice))
    name = await scheduler.received()

    async def cancel(secret: str) -> httpx.Response:
        return await guarded.http.post(f"/v1/requests/{name}/cancel", headers=bearing(secret))

    assert error_of(await cancel(bob)) == (404, "not_found")
    assert (await cancel(operator)).status_code == (await cancel(alice)).status_code == 202
    async with asyncio.timeout(LIMIT_S):
        assert [await scheduler.cancelled.get() for _ in range(2)] == [name, name]
    assert scheduler.cancelled.empty()
    hold.set()
    await held


async def test_a_key_sees_its_own_requests_and_an_operator_sees_all(
    guarded: RunningGateway, engine: AsyncEngine
) -> None:
    _, alice = await create_key(engine, "alice")
    _, bob = await create_key(engine, "bob")
    _, operator = await create_key(engine, "all", operator=True)
    ids = {secret: (await complete(guarded, secret)).headers["x-request-id"] for secret in (alice, bob)}

    async def visible(secret: str) -> tuple[set[str], set[str]]:
        """The ids of the list, and those that can be fetched."""
        listed = (await guarded.http.get("/v1/requests?limit=500", headers=bearing(secret))).json()["data"]
        fetched = [await guarded.http.get(f"/v1/requests/{name}", headers=bearing(secret)) for name in ids.values()]
        assert {reply.status_code for reply in fetched} <= {200, 404}
        return {row["id"] for row in listed}, {reply.json()["id"] for reply in fetched if reply.status_code == 200}

    await eventually(lambda: visible(operator), lambda found: set(ids.values()) <= found[0])
    assert await visible(alice) == ({ids[alice]}, {ids[alice]})
    assert await visible(bob) == ({ids[bob]}, {ids[bob]})
    assert (await visible(operator))[1] == set(ids.values())


async def test_a_key_sees_its_own_requests_in_progress_and_an_operator_sees_all(
    guarded: RunningGateway, engine: AsyncEngine, scheduler: AnsweringScheduler, hold: asyncio.Event
) -> None:
    alice, alices_secret = await create_key(engine, "alice")
    bob, bobs_secret = await create_key(engine, "bob")
    _, operators_secret = await create_key(engine, "operator", operator=True)
    asked = [asyncio.create_task(complete(guarded, secret)) for secret in (alices_secret, bobs_secret)]
    await reached(lambda: len(scheduler.requests) == 2)

    async def owners(secret: str, **filters: str) -> set[str]:
        query = {"status": "in_progress", **filters}
        reply = await guarded.http.get("/v1/requests", params=query, headers=bearing(secret))
        return {each["key"] for each in reply.json()["data"]}

    assert await owners(alices_secret) == await owners(operators_secret, key=alice.key_id) == {alice.key_id}
    assert await owners(alices_secret, key=bob.key_id) == set()
    assert await owners(operators_secret) == {alice.key_id, bob.key_id}
    hold.set()
    await asyncio.gather(*asked)


async def test_a_key_sees_itself_and_its_batches_and_an_operator_sees_all(
    guarded: RunningGateway, engine: AsyncEngine
) -> None:
    alice, alices_secret = await create_key(engine, "alice", 60, 8)
    _, bobs_secret = await create_key(engine, "bob")
    _, operators_secret = await create_key(engine, "operator", operator=True)
    upload: dict[str, Any] = {
        "files": {"file": ("a.jsonl", b"{}")},
        "data": {"purpose": "batch"},
        "headers": bearing(alices_secret),
    }
    file_id = (await guarded.http.post("/v1/files", **upload)).json()["id"]
    body = {"input_file_id": file_id, "endpoint": PATH, "completion_window": "24h"}
    batch_id = (await guarded.http.post("/v1/batches", json=body, headers=bearing(alices_secret))).json()["id"]
    await complete(guarded, alices_secret)

    async def listed(secret: str, path: str) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = (await guarded.http.get(path, headers=bearing(secret))).json()["data"]
        return data

    async def has_finished() -> bool:
        [own] = await listed(alices_secret, "/keys")
        return bool(own["finished"])

    await until(has_finished)
    [own] = await listed(alices_secret, "/keys")
    assert (own["id"], own["requests_per_minute"], own["concurrency"]) == (alice.key_id, 60, 8)
    assert (own["finished"], own["slo_attainment"]) == (1, 1.0)
    assert {key["name"] for key in await listed(operators_secret, "/keys")} >= {"alice", "bob", "operator"}
    assert [batch["id"] for batch in await listed(bobs_secret, "/v1/batches")] == []
    await eventually(
        lambda: listed(operators_secret, "/v1/batches"), lambda found: batch_id in [batch["id"] for batch in found]
    )  # a list can lack a record that is updated meanwhile
    seen = [
        await guarded.http.get(f"/v1/batches/{batch_id}", headers=bearing(secret))
        for secret in (bobs_secret, operators_secret)
    ]
    assert [reply.status_code for reply in seen] == [404, 200]


async def test_requests_beyond_the_concurrency_limit_are_rejected(
    guarded: RunningGateway, engine: AsyncEngine, scheduler: AnsweringScheduler, hold: asyncio.Event
) -> None:
    _, secret = await create_key(engine, "concurrent", None, 1, 0)
    first = asyncio.create_task(complete(guarded, secret))
    await scheduler.received()
    second = await complete(guarded, secret)
    assert error_of(second) == (429, "rate_limit_exceeded")
    assert second.headers["retry-after"]
    hold.set()
    assert (await first).status_code == 200
    await eventually(lambda: complete(guarded, secret), lambda found: found.status_code == 200)


async def test_the_list_of_keys_shows_names_and_no_secrets(postgres: PostgresServer, engine: AsyncEngine) -> None:
    key, secret = await create_key(engine, "[/carol]", None, None, 0, operator=True)
    listed = await keys_command(postgres, "list")
    assert key.key_id in listed
    assert "[/carol]" in listed
    assert "operator" in listed
    assert secret not in listed + str(await read_keys(engine))


async def test_a_revoked_key_becomes_invalid(guarded: RunningGateway, engine: AsyncEngine) -> None:
    key, secret = await create_key(engine, "revoked", None, None, 0)
    assert (await guarded.http.get("/v1/models", headers=bearing(secret))).status_code == 200
    await revoke_key(engine, key.key_id)
    await eventually(
        lambda: guarded.http.get("/v1/models", headers=bearing(secret)), lambda found: found.status_code == 401
    )


async def test_an_unknown_key_is_not_checked_while_the_database_does_not_reply(
    guarded: RunningGateway, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "READ_TIMEOUT_S", 0.5)
    async with engine.begin() as holding:
        await holding.execute(sql("LOCK TABLE api_keys"))
        assert error_of(await guarded.http.get("/v1/models", headers=bearing("dls-new"))) == (503, "unavailable")


async def test_known_keys_stay_valid_while_the_database_is_down(
    guarded: RunningGateway, postgres: PostgresServer, engine: AsyncEngine
) -> None:
    _, secret = await create_key(engine, "known", None, None, 0)
    assert (await guarded.http.get("/v1/models", headers=bearing(secret))).status_code == 200
    postgres.stop()
    try:
        assert (await guarded.http.get("/v1/models", headers=bearing(secret))).status_code == 200
    finally:
        await postgres.start()


async def test_without_a_database_no_key_can_be_checked(settings: GatewaySettings, text: TextModel) -> None:
    no_database = msgspec.structs.replace(settings, auth=True, database_url="postgresql://nobody@127.0.0.1:1/none")
    async with running(no_database, text) as gateway:
        reply = await gateway.http.get("/v1/models", headers=bearing("dls-any"))
        assert error_of(reply) == (503, "unavailable")


@pytest.fixture
def hold(scheduler: AnsweringScheduler) -> asyncio.Event:
    """The scheduler withholds every outcome until this is set."""
    scheduler.hold = asyncio.Event()
    return scheduler.hold


@pytest.fixture
async def small_gateway(
    settings: GatewaySettings, text: TextModel, hold: asyncio.Event
) -> AsyncIterator[RunningGateway]:
    """A gateway that holds at most two requests."""
    async with ready(msgspec.structs.replace(settings, max_active_requests=2), text) as gateway:
        yield gateway


async def test_requests_beyond_the_gateways_limit_are_rejected(
    scheduler: AnsweringScheduler, small_gateway: RunningGateway, hold: asyncio.Event
) -> None:
    sent = [asyncio.create_task(small_gateway.http.post(PATH, json=CHAT)) for _ in range(2)]
    await scheduler.received()
    await scheduler.received()
    third = await small_gateway.http.post(PATH, json=CHAT)
    assert error_of(third) == (429, "queue_full")
    assert third.headers["retry-after"] == "1"
    hold.set()
    assert [(await reply).status_code for reply in sent] == [200, 200]


THREE_QUESTIONS = {"input": "a", "questions": [{"type": "predicate", "instructions": "b"}] * 3}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [(PATH, {**CHAT, "n": 3}, "n"), ("/v1/decisions", {"model": CHAT["model"], **THREE_QUESTIONS}, "questions")],
)
async def test_more_choices_than_the_gateways_limit_are_a_bad_request(
    small_gateway: RunningGateway, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = await small_gateway.http.post(path, json=fields)
    assert error_of(reply) == (400, "invalid_value")
    assert reply.json()["error"]["param"] == param
    assert "the limit of this gateway is 2 requests in flight" in reply.json()["error"]["message"]


async def test_concurrent_requests_never_exceed_the_gateways_limit(
    small_gateway: RunningGateway, hold: asyncio.Event
) -> None:
    names = [{"Idempotency-Key": f"pears-{number}"} for number in range(6)]
    sent = [asyncio.create_task(small_gateway.http.post(PATH, json=CHAT, headers=name)) for name in names]
    await reached(lambda: sum(reply.done() for reply in sent) == 4)
    hold.set()
    statuses = sorted([(await reply).status_code for reply in sent])
    assert statuses == [200, 200, 429, 429, 429, 429]


async def test_responses_are_stored_only_for_keys_that_ask_for_it(engine: AsyncEngine, guarded: RunningGateway) -> None:
    (_, storing), (_, other), (_, plain) = [
        await create_key(engine, name, stores_responses=stores)
        for name, stores in (("a", True), ("b", True), ("c", False))
    ]

    async def respond(secret: str, **fields: Any) -> httpx.Response:
        body = {"model": "tiny-llada", "input": "How many pears?", **fields}
        return await guarded.http.post("/v1/responses", json=body, headers=bearing(secret))

    first, unstored = (await respond(storing)).json(), (await respond(plain)).json()
    assert (first["store"], unstored["store"]) == (True, False)
    assert (await respond(storing, previous_response_id=first["id"])).status_code == 200
    assert error_of(await respond(other, previous_response_id=first["id"])) == (400, "previous_response_not_found")
    refused = await respond(plain, previous_response_id=unstored["id"])
    assert error_of(refused) == (400, "unsupported_value")
    assert "send the earlier messages in input" in refused.json()["error"]["message"]


@pytest.fixture
async def two_gateways(
    postgres: PostgresServer,
    settings: GatewaySettings,
    text: TextModel,
    scheduler: AnsweringScheduler,
    shared: socket.socket,
) -> AsyncIterator[list[RunningGateway]]:
    """Two gateways of one cell that require API keys and share a port, each by its own address."""
    guarded = msgspec.structs.replace(settings, auth=True, database_url=postgres.url)
    async with running(guarded, text, shared=shared) as first, running(guarded, text, shared=shared) as second:
        for gateway in (first, second):
            await gateway.until("ready")
        yield [first, second]


async def test_a_keys_concurrency_counts_the_requests_at_all_gateways(
    two_gateways: list[RunningGateway], engine: AsyncEngine, scheduler: AnsweringScheduler, hold: asyncio.Event
) -> None:
    _, secret = await create_key(engine, "both", None, 1, 0)
    first, second = two_gateways
    held = asyncio.create_task(complete(first, secret))
    await scheduler.received()

    async def is_refused() -> bool:
        try:
            reply = await second.http.post(PATH, json=CHAT, headers=bearing(secret), timeout=1.0)
        except httpx.ReadTimeout:  # it was admitted before this gateway knew of the other request; leaving cancels it
            return False
        return reply.status_code == 429

    await until(is_refused)
    hold.set()
    assert (await held).status_code == 200
    await eventually(lambda: complete(second, secret), lambda found: found.status_code == 200)
