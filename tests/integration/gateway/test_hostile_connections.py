"""Hostile clients: their connections, and web pages of other sites."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from services.gateway import http_protocol
from services.gateway.api import request_body
from services.gateway.http_protocol import MAX_HEADER_BYTES
from services.gateway.settings import GatewaySettings
from shared.text import TextModel
from tests.support.gateway import LIMIT_S, ONE_CELL, OWN_CELL, RunningGateway, running

pytestmark = ONE_CELL

TIMEOUT_S = 0.3
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
STREAM = json.dumps({"model": "tiny-llada", "prompt": "hi", "stream": True}).encode()
JSON = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POST = JSON + b"Content-Length: %d\r\n\r\n" % len(STREAM)


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", TIMEOUT_S)


@contextlib.asynccontextmanager
async def connected(gateway: RunningGateway) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection; the block has LIMIT_S."""
    url = httpx.URL(gateway.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield reader, writer
    finally:
        writer.close()


async def reply_to_endless(gateway: RunningGateway, start: bytes, part: bytes, pause_s: float = 0.0) -> bytes:
    """Send `start`, then `part` again and again until the connection is closed. Returns: all that was received."""
    async with connected(gateway) as (reader, writer):
        received = bytearray()

        async def receive() -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65_536):
                    received.extend(data)

        closed = asyncio.create_task(receive())
        writer.write(start)
        with contextlib.suppress(ConnectionError):
            while not closed.done():
                writer.write(part)
                await writer.drain()
                await asyncio.wait({closed}, timeout=pause_s)
        await closed
        return bytes(received)


@pytest.mark.parametrize("start", [GET + b"X-Endless: ", GET, b"GET /"], ids=["value", "fields", "path"])
async def test_an_endless_header_is_refused(lonely_gateway: RunningGateway, start: bytes) -> None:
    part = b"X-More: 1\r\n" * 1_000 if start == GET else b"x" * 10_000
    async with connected(lonely_gateway) as (reader, writer):
        writer.write(start + part * (2 * MAX_HEADER_BYTES // len(part)))
        reply = await reader.read()
    assert reply.startswith(b"HTTP/1.1 431 ")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == "header_too_large"


async def test_an_endless_trailer_ends_its_connection(lonely_gateway: RunningGateway) -> None:
    start = JSON + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-Endless: "
    assert b"200 OK" not in await reply_to_endless(lonely_gateway, start, b"x" * 65_536)


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 2\r\nContent-Length: 30\r\n",
        b"Transfer-Encoding: gzip\r\n",
    ],
    ids=["length and chunks", "two lengths", "no length"],
)
async def test_a_body_of_ambiguous_length_hides_no_request(lonely_gateway: RunningGateway, lengths: bytes) -> None:
    async with connected(lonely_gateway) as (reader, writer):
        writer.write(JSON + lengths + b"\r\n0\r\n\r\n" + GET + b"\r\n")
        reply = await reader.read()
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert reply.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("path", [b"/console/../routes/console.py", b"/console/%2e%2e/%2e%2e/settings.py"])
async def test_no_path_leads_to_a_file_outside_the_console(lonely_gateway: RunningGateway, path: bytes) -> None:
    async with connected(lonely_gateway) as (reader, writer):
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")


async def test_a_request_that_offers_another_protocol_is_served_with_its_body(gateway: RunningGateway) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAEAAEAA\r\n"
    body = json.dumps({"model": "tiny-llada", "prompt": "hi"}).encode()
    whole = b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        body[:5],
        len(body) - 5,
        body[5:],
    )
    sent = b"".join(JSON + offer % kind + each for kind in (b"h2c", b"websocket") for each in (whole, chunked, whole))
    for size in (len(sent), 50):  # all at once, and in pieces
        async with connected(gateway) as (reader, writer):
            for start in range(0, len(sent), size):
                writer.write(sent[start : start + size])
                await writer.drain()
            for _ in range(6):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200"), head
                length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
                reply = json.loads(await reader.readexactly(int(length.split()[1])))
                assert reply["choices"][0]["text"] == "The answer is 29."


async def test_a_large_header_within_the_limit_is_accepted(lonely_gateway: RunningGateway) -> None:
    reply = await lonely_gateway.http.get("/health", headers={"X-Large": "x" * (MAX_HEADER_BYTES - 1_000)})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    ("start", "part", "status", "reason"),
    [
        (GET, b"X-Slow: 1\r\n", 408, b"the header did not arrive within"),
        (GET + b"\r\n", b"\r\n", 200, b""),
        (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n", b"x", 404, b""),
    ],
    ids=["fields of a header", "empty lines after a request", "the rest of a refused body"],
)
async def test_parts_that_arrive_slowly_keep_no_connection_open(
    lonely_gateway: RunningGateway, short_timeout: None, start: bytes, part: bytes, status: int, reason: bytes
) -> None:
    reply = await reply_to_endless(lonely_gateway, start, part, pause_s=TIMEOUT_S / 10)
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert reply.count(b"HTTP/1.1 ") == 1
    assert reason in reply


async def test_idle_connections_are_closed(lonely_gateway: RunningGateway, short_timeout: None) -> None:
    async with connected(lonely_gateway) as (reader, _):
        assert await reader.read() == b""


async def test_a_connection_is_closed_a_while_after_its_last_response(
    settings: GatewaySettings, text: TextModel
) -> None:
    brief = msgspec.structs.replace(settings, keep_alive_s=1)
    async with running(brief, text) as gateway, connected(gateway) as (reader, writer):
        writer.write(GET + b"\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")


async def test_a_stream_that_outlasts_the_header_timeout_is_served_whole(
    gateway: RunningGateway, short_timeout: None
) -> None:
    gateway.scheduler.hold = asyncio.Event()
    async with connected(gateway) as (reader, writer):
        writer.write(POST + STREAM + b"GET /health HTTP/1.1\r\n")  # the next header begins and waits
        await gateway.scheduler.received()
        await asyncio.sleep(3 * TIMEOUT_S)
        gateway.scheduler.hold.set()
        stream = await reader.readuntil(b"data: [DONE]")
    assert stream.startswith(b"HTTP/1.1 200 ")


async def test_a_stream_is_whole_for_a_client_that_reads_slowly(gateway: RunningGateway, short_timeout: None) -> None:
    async with connected(gateway) as (reader, writer):
        writer.write(POST + STREAM)
        await gateway.scheduler.received()
        stream = b""
        while b"data: [DONE]" not in stream:
            stream += await reader.read(500)
            await asyncio.sleep(TIMEOUT_S / 5)
    assert b"HTTP/1.1 200 " in stream


async def test_a_client_that_stops_sending_its_body_is_disconnected(
    lonely_gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "PART_TIMEOUT_S", 0.1)
    async with connected(lonely_gateway) as (reader, writer):
        writer.write(JSON + b"Content-Length: 100\r\n\r\n{")
        reply = await reader.read()  # until it is closed
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"the body arrived too slowly: 1 bytes" in reply


async def test_a_body_that_arrives_slowly_in_many_parts_is_refused(
    lonely_gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "PART_TIMEOUT_S", 0.5)
    reply = await reply_to_endless(lonely_gateway, JSON + b"Content-Length: 100000\r\n\r\n", b" ", pause_s=0.05)
    assert reply.startswith(b"HTTP/1.1 408 ")


SITE = "https://app.example"


@pytest.fixture
async def public_gateway(settings: GatewaySettings, text: TextModel) -> AsyncIterator[RunningGateway]:
    """A gateway for one name and one other site."""
    changed = {"host": "0.0.0.0", "allowed_hosts": ("api.example",), "allowed_origins": (SITE,)}  # noqa: S104
    async with running(msgspec.structs.replace(settings, **changed), text) as gateway:
        await gateway.until("no scheduler leads; no instance is ready")
        yield gateway


async def refusal(gateway: RunningGateway, headers: dict[str, str], path: str = "/health") -> str | None:
    """The code of a 403; None if the request is accepted."""
    reply = await gateway.http.get(path, headers=headers)
    if reply.status_code == 200:
        return None
    assert reply.status_code == 403
    return str(reply.json()["error"]["code"])


async def test_on_loopback_only_local_names_and_addresses_are_hosts(lonely_gateway: RunningGateway) -> None:
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "192.168.0.9"):
        assert await refusal(lonely_gateway, {"Host": host}) is None, host
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "[", "a@b:c"):
        assert await refusal(lonely_gateway, {"Host": host}) == "host_not_allowed", host


@OWN_CELL
async def test_without_the_setting_a_public_gateway_accepts_any_host(
    settings: GatewaySettings, text: TextModel
) -> None:
    async with running(msgspec.structs.replace(settings, host="0.0.0.0"), text) as gateway:  # noqa: S104
        await gateway.until("no scheduler leads; no instance is ready")
        assert await refusal(gateway, {"Host": "api.example"}) is None


@OWN_CELL
async def test_with_settings_other_names_are_refused_and_a_site_may_read_and_send(
    public_gateway: RunningGateway,
) -> None:
    for host in ("api.example", "api.example:8000", "10.0.0.7:8000", "localhost"):
        assert await refusal(public_gateway, {"Host": host}) is None, host
    assert await refusal(public_gateway, {"Host": "evil.example"}) == "host_not_allowed"
    reply = await public_gateway.http.get("/health", headers={"Origin": SITE})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, SITE)
    readable = reply.headers["access-control-expose-headers"].split(", ")
    assert {"X-Request-Id", "Retry-After", "X-Dilaserve-Ignored", "X-Dilaserve-Adjusted"} == set(readable)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    preflight = await public_gateway.http.options("/v1/completions", headers={"Origin": SITE} | asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    assert await refusal(public_gateway, {"Origin": "https://evil.example"}) == "origin_not_allowed"


async def test_requests_of_pages_of_other_sites_are_refused(lonely_gateway: RunningGateway) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:1", "http://evil.localhost:8000"):
        headers = {"Host": "localhost:8000", "Origin": origin}
        for path in ("/health", "/v1/models", "/"):
            assert await refusal(lonely_gateway, headers, path) == "origin_not_allowed", origin
    assert await refusal(lonely_gateway, {"Host": "localhost:8000", "Origin": "http://localhost:8000"}) is None


async def test_every_reply_forbids_frames_foreign_scripts_and_guessed_types(lonely_gateway: RunningGateway) -> None:
    for path in ("/", "/console/js/main.js", "/health", "/nowhere", "/openapi.json"):
        headers = (await lonely_gateway.http.get(path)).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff", path
