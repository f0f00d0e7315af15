"""API keys: required, checked, limited, revoked."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import AsyncEngine

from dilaserve.cli import run
from dilaserve.load.client import open_client, served_model
from dilaserve.stack.data_dir import Addresses, write_addresses
from services.gateway.admission import api_keys
from services.gateway.settings import GatewaySettings
from shared.api_keys import ApiKey
from shared.database.key_store import create_key, read_keys, revoke_key
from shared.database.schema import open_database
from shared.errors import BadInput
from shared.text import TextModel
from tests.support.gateway import CHAT, LIMIT_S, ONE_CELL, OWN_CELL, RunningGateway, running
from tests.support.postgres import PostgresServer
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import eventually, reached, until

pytestmark = ONE_CELL

PATH = "/v1/chat/completions"

NewKey = Callable[..., Awaitable[tuple[ApiKey, str]]]


@pytest.fixture(autouse=True, scope="module")
def frequent_reads() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_keys, "MIN_READ_INTERVAL_S", 0.01)
        patch.setattr(api_keys, "REFRESH_S", 0.1)
        yield


@pytest.fixture(scope="module")
def changes(postgres: PostgresServer) -> dict[str, Any]:
    return {"auth": True, "database_url": postgres.url}


@asynccontextmanager
async def opened(postgres: PostgresServer) -> AsyncIterator[AsyncEngine]:
    engine = open_database(postgres.url)
    yield engine
    await engine.dispose()


@pytest.fixture
def new_key(postgres: PostgresServer) -> NewKey:
    """Creates a key with these limits and rights. Returns: the key and its secret."""

    async def create(name: str, *limits: int | None, **rights: bool) -> tuple[ApiKey, str]:
        async with opened(postgres) as engine:
            return await create_key(engine, name, *limits, **rights)  # type: ignore[arg-type]

    return create


def bearing(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def error_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


async def complete(gateway: RunningGateway, secret: str, **fields: Any) -> httpx.Response:
    return await gateway.http.post(PATH, json=CHAT | fields, headers=bearing(secret))


async def test_without_a_valid_key_every_route_is_unauthorized(gateway: RunningGateway) -> None:
    without_key = await gateway.http.post(PATH, json=CHAT)
    assert without_key.headers["www-authenticate"] == "Bearer"
    paths = (await gateway.http.get("/openapi.json")).json()["paths"]
    assert {"/v1/responses", "/v1/messages", "/v1/models", "/v1/files", "/cluster"} <= set(paths)
    tried = [
        await gateway.http.request(method, path)
        for path, methods in paths.items()
        for method in methods
        if path not in ("/health", "/ready", "/metrics")
    ]
    for reply in (without_key, await complete(gateway, "dls-guessed"), *tried):
        assert error_of(reply) == (401, "invalid_api_key"), reply.url


async def test_a_key_in_another_header_authorizes_requests(gateway: RunningGateway, new_key: NewKey) -> None:
    _, secret = await new_key("anthropic")
    body = CHAT | {"max_tokens": 8}
    of_a_proxy = {"Authorization": "Basic dXNlcjpwYXNz"}
    served = [
        await gateway.http.post("/v1/messages", json=body, headers={name: secret} | more)
        for name, more in (("x-api-key", {}), ("api-key", {}), ("x-api-key", of_a_proxy))
    ]
    refused = await gateway.http.post("/v1/messages", json=body, headers={"x-api-key": "dls-guessed"})
    absent = await gateway.http.post("/v1/messages", json=body)
    assert [reply.status_code for reply in served] == [200, 200, 200]
    for reply in (refused, absent):
        assert error_of(reply) == (401, "invalid_api_key")
        assert reply.json()["error"]["type"] == "authentication_error"
    assert "x-api-key: KEY or api-key: KEY" in absent.json()["error"]["message"]


async def test_a_created_key_authorizes_requests(
    gateway: RunningGateway, postgres: PostgresServer, new_key: NewKey, capsys: pytest.CaptureFixture[str]
) -> None:
    await new_key("other")
    options = ("--max-priority", "3", "--operator", "--json", "--database-url", postgres.url)
    assert await asyncio.to_thread(run, ["keys", "create", "alice", *options]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (await complete(gateway, made["secret"])).status_code == 200
    assert (await complete(gateway, made["secret"], priority=3)).status_code == 200
    names = {key["name"] for key in (await gateway.http.get("/keys", headers=bearing(made["secret"]))).json()["data"]}
    assert {"alice", "other"} <= names  # as an operator


@pytest.mark.parametrize("auth", [False, True])
async def test_a_key_of_a_stack_that_needs_none_is_made_with_a_note(
    auth: bool, postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unused = "nats://127.0.0.1:1"
    addresses = Addresses(url="", nats_url=unused, nats_urls={}, database_url=postgres.url, auth=auth)
    write_addresses(tmp_path, addresses)
    assert await asyncio.to_thread(run, ["keys", "create", "bob", "--data-dir", str(tmp_path)]) == 0
    assert ("serves requests without a key, too" in capsys.readouterr().out) is not auth


async def test_a_request_has_at_most_the_keys_maximum_as_priority(gateway: RunningGateway, new_key: NewKey) -> None:
    for maximum, given in ((-5, -5), (3, 0)):
        _, secret = await new_key("low", None, None, maximum)
        assert (await complete(gateway, secret)).status_code == 200
        assert gateway.scheduler.requests[-1].priority == given
        assert (await complete(gateway, secret, priority=maximum)).status_code == 200
        above = await complete(gateway, secret, priority=maximum + 1)
        assert error_of(above) == (403, "priority_too_high")
        assert above.json()["error"]["param"] == "priority"


async def test_bench_finds_the_model_by_the_key_alone(gateway: RunningGateway, new_key: NewKey) -> None:
    _, secret = await new_key("bench")
    async with open_client(gateway.url, httpx.Timeout(LIMIT_S), secret) as client:
        assert await served_model(client) == "tiny-llada"
    async with open_client(gateway.url, httpx.Timeout(LIMIT_S), "") as client:
        with pytest.raises(BadInput, match="DILASERVE_API_KEY"):
            await served_model(client)


async def test_requests_beyond_the_rate_limit_are_rejected(gateway: RunningGateway, new_key: NewKey) -> None:
    _, secret = await new_key("hasty", 2, None, 0)
    replies = [await complete(gateway, secret) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert 1 <= int(replies[2].headers["retry-after"]) <= 30
    _, secret = await new_key("several", 4)
    choices = [await complete(gateway, secret, n=n) for n in (2, 4, 1)]
    assert [reply.status_code for reply in choices] == [200, 429, 200]  # all or none of a body's choices count


async def test_choices_that_a_keys_rate_never_allows_are_refused_by_name(
    gateway: RunningGateway, new_key: NewKey
) -> None:
    _, secret = await new_key("several", 5)
    never = await complete(gateway, secret, n=6)
    assert (error_of(never), never.json()["error"]["param"]) == ((400, "invalid_value"), "n")
    for prompts in ({"max_tokens": 0, "echo": True}, {"max_tokens": 8}):
        body = {"model": "tiny-llada", "prompt": list("abcdef"), **prompts}
        listed = await gateway.http.post("/v1/completions", json=body, headers=bearing(secret))
        assert (error_of(listed), listed.json()["error"]["param"]) == ((400, "invalid_value"), "prompt")
    assert (await complete(gateway, secret, n=2)).status_code == 200


async def test_choices_that_a_key_never_allows_in_flight_are_refused_by_name(
    gateway: RunningGateway, new_key: NewKey
) -> None:
    _, secret = await new_key("two at once", None, 2)
    never = await complete(gateway, secret, n=3)
    assert (error_of(never), never.json()["error"]["param"]) == ((400, "invalid_value"), "n")
    assert not gateway.scheduler.requests
    assert (await complete(gateway, secret, n=2)).status_code == 200


async def test_uploads_and_batches_count_against_the_rate_limit(gateway: RunningGateway, new_key: NewKey) -> None:
    _, secret = await new_key("uploading", 2)
    sent: dict[str, Any] = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "batch"}}
    batch = {"input_file_id": "file-none", "endpoint": PATH, "completion_window": "24h"}
    uploads = [await gateway.http.post("/v1/files", headers=bearing(secret), **sent) for _ in range(3)]
    assert [reply.status_code for reply in uploads] == [200, 200, 429]
    assert uploads[2].headers["retry-after"]
    created = await gateway.http.post("/v1/batches", headers=bearing(secret), json=batch)
    assert error_of(created) == (429, "rate_limit_exceeded")


async def test_the_tokenizer_counts_against_the_rate_limit(gateway: RunningGateway, new_key: NewKey) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/tokenize": CHAT,
        "/detokenize": {"model": "tiny-llada", "tokens": [65]},
        "/v1/messages/count_tokens": CHAT,
    }
    for path, body in bodies.items():
        _, secret = await new_key("counting", 2)
        replies = [await gateway.http.post(path, headers=bearing(secret), json=body) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429], path
        assert error_of(replies[2]) == (429, "rate_limit_exceeded")


async def test_a_key_cannot_cancel_a_request_of_another(gateway: RunningGateway, new_key: NewKey) -> None:
    _, alice = await new_key("alice")
    _, bob = await new_key("bob")
    _, operator = await new_key("operator", operator=True)

    async def cancel(name: str, secret: str) -> httpx.Response:
        return await gateway.http.post(f"/v1/requests/{name}/cancel", headers=bearing(secret))

    async with gateway.scheduler.withholding(complete(gateway, alice)) as name, asyncio.timeout(LIMIT_S):
        assert error_of(await cancel(name, bob)) == (404, "not_found")
        assert (await cancel(name, operator)).status_code == (await cancel(name, alice)).status_code == 202
        assert [await gateway.scheduler.cancelled.get() for _ in range(2)] == [name, name]
    assert gateway.scheduler.cancelled.empty()


async def test_a_key_sees_its_own_requests_and_an_operator_sees_all(gateway: RunningGateway, new_key: NewKey) -> None:
    _, alice = await new_key("alice")
    _, bob = await new_key("bob")
    _, operator = await new_key("all", operator=True)
    ids = {secret: (await complete(gateway, secret)).headers["x-request-id"] for secret in (alice, bob)}

    async def visible(secret: str) -> tuple[set[str], set[str]]:
        """The ids of the list, and those that can be fetched."""
        listed = (await gateway.http.get("/v1/requests?limit=500", headers=bearing(secret))).json()["data"]
        fetched = [await gateway.http.get(f"/v1/requests/{name}", headers=bearing(secret)) for name in ids.values()]
        assert {reply.status_code for reply in fetched} <= {200, 404}
        return {row["id"] for row in listed}, {reply.json()["id"] for reply in fetched if reply.status_code == 200}

    await eventually(lambda: visible(operator), lambda found: set(ids.values()) <= found[0])
    assert await visible(alice) == ({ids[alice]}, {ids[alice]})
    assert await visible(bob) == ({ids[bob]}, {ids[bob]})
    assert (await visible(operator))[1] == set(ids.values())


async def test_a_key_sees_its_own_requests_in_progress_and_an_operator_sees_all(
    gateway: RunningGateway, new_key: NewKey
) -> None:
    gateway.scheduler.hold = asyncio.Event()
    alice, alices_secret = await new_key("alice")
    bob, bobs_secret = await new_key("bob")
    _, operators_secret = await new_key("operator", operator=True)
    asked = [asyncio.create_task(complete(gateway, secret)) for secret in (alices_secret, bobs_secret)]
    await reached(lambda: len(gateway.scheduler.requests) == 2)

    async def owners(secret: str, **filters: str) -> set[str]:
        query = {"status": "in_progress", **filters}
        reply = await gateway.http.get("/v1/requests", params=query, headers=bearing(secret))
        return {each["key"] for each in reply.json()["data"]}

    assert await owners(alices_secret) == await owners(operators_secret, key=alice.key_id) == {alice.key_id}
    assert await owners(alices_secret, key=bob.key_id) == set()
    assert await owners(operators_secret) == {alice.key_id, bob.key_id}
    gateway.scheduler.hold.set()
    await asyncio.gather(*asked)


async def test_a_key_sees_itself_and_its_batches_and_an_operator_sees_all(
    gateway: RunningGateway, new_key: NewKey
) -> None:
    alice, alices_secret = await new_key("alice", 60, 8)
    _, bobs_secret = await new_key("bob")
    _, operators_secret = await new_key("operator", operator=True)
    upload: dict[str, Any] = {
        "files": {"file": ("a.jsonl", b"{}")},
        "data": {"purpose": "batch"},
        "headers": bearing(alices_secret),
    }
    file_id = (await gateway.http.post("/v1/files", **upload)).json()["id"]
    body = {"input_file_id": file_id, "endpoint": PATH, "completion_window": "24h"}
    batch_id = (await gateway.http.post("/v1/batches", json=body, headers=bearing(alices_secret))).json()["id"]
    await complete(gateway, alices_secret)

    async def listed(secret: str, path: str) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = (await gateway.http.get(path, headers=bearing(secret))).json()["data"]
        return data

    [own] = await eventually(lambda: listed(alices_secret, "/keys"), lambda found: found[0]["finished"])
    assert (own["id"], own["requests_per_minute"], own["concurrency"]) == (alice.key_id, 60, 8)
    assert (own["finished"], own["slo_attainment"]) == (1, 1.0)
    assert {key["name"] for key in await listed(operators_secret, "/keys")} >= {"alice", "bob", "operator"}
    assert [batch["id"] for batch in await listed(bobs_secret, "/v1/batches")] == []
    await eventually(
        lambda: listed(operators_secret, "/v1/batches"), lambda found: batch_id in [batch["id"] for batch in found]
    )  # a list can lack a record that is updated meanwhile
    seen = [
        await gateway.http.get(f"/v1/batches/{batch_id}", headers=bearing(secret))
        for secret in (bobs_secret, operators_secret)
    ]
    assert [reply.status_code for reply in seen] == [404, 200]


async def test_requests_beyond_the_concurrency_limit_are_rejected(gateway: RunningGateway, new_key: NewKey) -> None:
    _, secret = await new_key("concurrent", None, 1, 0)
    async with gateway.scheduler.withholding(complete(gateway, secret)):
        second = await complete(gateway, secret)
        assert error_of(second) == (429, "rate_limit_exceeded")
        assert second.headers["retry-after"]
    await eventually(lambda: complete(gateway, secret), lambda found: found.status_code == 200)


async def test_the_list_of_keys_shows_names_and_no_secrets(
    postgres: PostgresServer, new_key: NewKey, capsys: pytest.CaptureFixture[str]
) -> None:
    key, secret = await new_key("[/carol]", operator=True)
    assert await asyncio.to_thread(run, ["keys", "list", "--database-url", postgres.url]) == 0
    listed = capsys.readouterr().out
    assert key.key_id in listed
    assert "[/carol]" in listed
    assert "operator" in listed
    async with opened(postgres) as engine:
        assert secret not in listed + str(await read_keys(engine))


async def test_a_revoked_key_becomes_invalid(
    gateway: RunningGateway, postgres: PostgresServer, new_key: NewKey
) -> None:
    key, secret = await new_key("revoked")
    assert (await gateway.http.get("/v1/models", headers=bearing(secret))).status_code == 200
    async with opened(postgres) as engine:
        await revoke_key(engine, key.key_id)
    await eventually(
        lambda: gateway.http.get("/v1/models", headers=bearing(secret)), lambda found: found.status_code == 401
    )


async def test_an_unknown_key_is_not_checked_while_the_database_does_not_reply(
    gateway: RunningGateway, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "READ_TIMEOUT_S", 0.5)
    async with opened(postgres) as engine, engine.begin() as holding:
        await holding.execute(sql("LOCK TABLE api_keys"))
        assert error_of(await gateway.http.get("/v1/models", headers=bearing("dls-new"))) == (503, "unavailable")


async def test_known_keys_stay_valid_while_the_database_is_down(
    gateway: RunningGateway, postgres: PostgresServer, new_key: NewKey
) -> None:
    _, secret = await new_key("known")
    assert (await gateway.http.get("/v1/models", headers=bearing(secret))).status_code == 200
    postgres.stop()
    try:
        assert (await gateway.http.get("/v1/models", headers=bearing(secret))).status_code == 200
    finally:
        await postgres.start()


async def test_responses_are_stored_only_for_keys_that_ask_for_it(gateway: RunningGateway, new_key: NewKey) -> None:
    rights = {"storing": True, "other": True, "plain": False}
    storing, other, plain = [(await new_key(name, stores_responses=may))[1] for name, may in rights.items()]

    async def respond(secret: str, **fields: Any) -> httpx.Response:
        body = {"model": "tiny-llada", "input": "How many pears?", **fields}
        return await gateway.http.post("/v1/responses", json=body, headers=bearing(secret))

    first, unstored = (await respond(storing)).json(), (await respond(plain)).json()
    assert (first["store"], unstored["store"]) == (True, False)
    assert (await respond(storing, previous_response_id=first["id"])).status_code == 200
    assert error_of(await respond(other, previous_response_id=first["id"])) == (400, "previous_response_not_found")
    refused = await respond(plain, previous_response_id=unstored["id"])
    assert error_of(refused) == (400, "unsupported_value")
    assert "send the earlier messages in input" in refused.json()["error"]["message"]
    named = [{"type": "item_reference", "id": unstored["output"][0]["id"]}, {"role": "user", "content": "Sure?"}]
    assert (await respond(plain, input=named)).status_code == 200
    assert error_of(await respond(other, input=named)) == (404, "not_found")


@OWN_CELL
async def test_a_keys_concurrency_counts_the_requests_at_all_gateways(
    settings: GatewaySettings, text: TextModel, new_key: NewKey, scheduler: AnsweringScheduler, shared: socket.socket
) -> None:
    _, secret = await new_key("both", None, 1)
    async with running(settings, text, shared=shared) as first, running(settings, text, shared=shared) as second:
        for gateway in (first, second):
            await gateway.until("ready")

        async def is_refused() -> bool:
            try:
                reply = await second.http.post(PATH, json=CHAT, headers=bearing(secret), timeout=1.0)
            except httpx.ReadTimeout:  # it was admitted before this gateway knew of the other; leaving cancels it
                return False
            return reply.status_code == 429

        async with scheduler.withholding(complete(first, secret)):
            await until(is_refused)
        await eventually(lambda: complete(second, secret), lambda found: found.status_code == 200)
