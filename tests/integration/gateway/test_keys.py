"""API keys: asked for, found, limited, revoked."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import AsyncEngine

from dilaserve.load.client import open_client, served_model
from services.gateway.settings import GatewaySettings
from shared.database.key_store import create_key, read_keys, revoke_key
from shared.database.schema import open_database, upgrade
from shared.errors import BadInput
from shared.text import TextModel
from tests.support.gateway import LIMIT_S, RunningGateway, running
from tests.support.postgres import PostgresServer
from tests.support.scheduler import AnsweringScheduler
from tests.support.stack import dilaserve, new_data_dir
from tests.support.waiting import until

CHAT: dict[str, Any] = {"model": "tiny-llada", "messages": [{"role": "user", "content": "How many pears?"}]}
PATH = "/v1/chat/completions"


@pytest.fixture
async def postgres() -> AsyncIterator[PostgresServer]:
    with new_data_dir() as data_dir:
        server = PostgresServer(data_dir)
        await server.start()
        yield server
        server.stop()


@pytest.fixture
async def engine(postgres: PostgresServer) -> AsyncIterator[AsyncEngine]:
    engine = open_database(postgres.url)
    await upgrade(engine)
    yield engine
    await engine.dispose()


def bearing(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def keys_command(postgres: PostgresServer, *arguments: str) -> str:
    """What `dilaserve keys` prints."""
    done = await asyncio.to_thread(dilaserve, "keys", *arguments, "--database-url", postgres.url)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


async def test_keys_open_and_limit_and_outlive_the_database(
    postgres: PostgresServer,
    engine: AsyncEngine,
    settings: GatewaySettings,
    text: TextModel,
    scheduler: AnsweringScheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking = msgspec.structs.replace(settings, auth=True, database_url=postgres.url)
    async with running(asking, text) as gateway:
        await gateway.until("ready")
        http = gateway.http

        none = await http.post(PATH, json=CHAT)
        assert refused(none) == (401, "invalid_api_key")
        assert none.headers["www-authenticate"] == "Bearer"
        assert refused(await http.post(PATH, json=CHAT, headers=bearing("dls-guessed"))) == (401, "invalid_api_key")
        assert refused(await http.get("/v1/models")) == (401, "invalid_api_key")
        assert refused(await http.get("/cluster")) == (401, "invalid_api_key")
        assert (await http.get("/ready")).status_code == 200

        made = json.loads(await keys_command(postgres, "create", "alice", "--max-priority", "3", "--json"))
        secret = made["secret"]
        assert (await http.post(PATH, json=CHAT, headers=bearing(secret))).status_code == 200
        assert (await http.post(PATH, json=CHAT | {"priority": 3}, headers=bearing(secret))).status_code == 200
        above = await http.post(PATH, json=CHAT | {"priority": 4}, headers=bearing(secret))
        assert refused(above) == (403, "priority_too_high")
        assert above.json()["error"]["param"] == "priority"

        await bench_finds_the_model_by_the_key_alone(gateway, secret)

        _, hasty = await create_key(engine, "bob", 2, None, 0)
        replies = [await http.post(PATH, json=CHAT, headers=bearing(hasty)) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert 1 <= int(replies[2].headers["retry-after"]) <= 30

        await only_one_at_a_time(gateway, scheduler, (await create_key(engine, "[/carol]", None, 1, 0))[1])

        listed = await keys_command(postgres, "list")
        assert made["key_id"] in listed
        assert "[/carol]" in listed
        assert secret not in listed + str(await read_keys(engine))
        await revoke_key(engine, made["key_id"])

        async def is_revoked() -> bool:
            return (await http.get("/v1/models", headers=bearing(secret))).status_code == 401

        await until(is_revoked)
        monkeypatch.setattr("services.gateway.admission.api_keys.READ_TIMEOUT_S", 0.5)
        async with engine.begin() as holding:  # the keys can be asked for, and no answer comes
            await holding.execute(sql("LOCK TABLE api_keys"))
            assert refused(await http.get("/v1/models", headers=bearing("dls-new"))) == (503, "unavailable")
        postgres.stop()
        other = await http.get("/v1/models", headers=bearing(hasty))
        assert other.status_code == 200, "what was read last goes on being valid"


async def bench_finds_the_model_by_the_key_alone(gateway: RunningGateway, secret: str) -> None:
    async with open_client(gateway.url, httpx.Timeout(LIMIT_S), secret) as client:
        assert await served_model(client) == "tiny-llada"
    async with open_client(gateway.url, httpx.Timeout(LIMIT_S), "") as client:
        with pytest.raises(BadInput, match="DILASERVE_API_KEY"):
            await served_model(client)


async def only_one_at_a_time(gateway: RunningGateway, scheduler: AnsweringScheduler, secret: str) -> None:
    scheduler.hold = asyncio.Event()
    while not scheduler.served.empty():
        scheduler.served.get_nowait()
    first = asyncio.create_task(gateway.http.post(PATH, json=CHAT, headers=bearing(secret)))
    async with asyncio.timeout(LIMIT_S):
        await scheduler.served.get()
    second = await gateway.http.post(PATH, json=CHAT, headers=bearing(secret))
    assert refused(second) == (429, "rate_limit_exceeded")
    assert second.headers["retry-after"]
    scheduler.hold.set()
    assert (await first).status_code == 200
    scheduler.hold = None

    async def again() -> bool:
        return (await gateway.http.post(PATH, json=CHAT, headers=bearing(secret))).status_code == 200

    await until(again)


async def test_without_its_database_no_key_can_be_told(settings: GatewaySettings, text: TextModel) -> None:
    away = msgspec.structs.replace(settings, auth=True, database_url="postgresql://nobody@127.0.0.1:1/none")
    async with running(away, text) as gateway:
        reply = await gateway.http.get("/v1/models", headers=bearing("dls-any"))
        assert refused(reply) == (503, "unavailable")


@pytest.fixture
def hold(scheduler: AnsweringScheduler) -> asyncio.Event:
    """Until it is set, no request has its outcome."""
    scheduler.hold = asyncio.Event()
    return scheduler.hold


@pytest.fixture
async def small_gateway(
    settings: GatewaySettings, text: TextModel, hold: asyncio.Event
) -> AsyncIterator[RunningGateway]:
    """Holds two requests at most."""
    async with running(msgspec.structs.replace(settings, max_active_requests=2), text) as gateway:
        await gateway.until("ready")
        yield gateway


async def test_more_requests_than_the_gateway_holds_are_refused(
    scheduler: AnsweringScheduler, small_gateway: RunningGateway, hold: asyncio.Event
) -> None:
    sent = [asyncio.create_task(small_gateway.http.post(PATH, json=CHAT)) for _ in range(2)]
    async with asyncio.timeout(LIMIT_S):
        await scheduler.served.get()
        await scheduler.served.get()
    third = await small_gateway.http.post(PATH, json=CHAT)
    assert refused(third) == (429, "queue_full")
    assert third.headers["retry-after"] == "1"
    hold.set()
    assert [(await reply).status_code for reply in sent] == [200, 200]


async def test_of_many_that_come_at_once_no_more_come_in_than_the_gateway_holds(
    small_gateway: RunningGateway, hold: asyncio.Event
) -> None:
    names = [{"Idempotency-Key": f"pears-{number}"} for number in range(6)]
    sent = [asyncio.create_task(small_gateway.http.post(PATH, json=CHAT, headers=name)) for name in names]

    async def four_are_refused() -> bool:
        return sum(reply.done() for reply in sent) == 4

    await until(four_are_refused)
    hold.set()
    statuses = sorted([(await reply).status_code for reply in sent])
    assert statuses == [200, 200, 429, 429, 429, 429]
