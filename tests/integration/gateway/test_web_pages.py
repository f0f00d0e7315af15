"""Web pages of other sites cannot use the gateway through a visitor's browser."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from services.gateway.settings import GatewaySettings
from shared.text import TextModel
from tests.support.gateway import ONE_CELL, OWN_CELL, RunningGateway, running

pytestmark = ONE_CELL

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
