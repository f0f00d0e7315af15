"""Probes whether servers answer, and waits until they do."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import cache

import httpx
import nats.errors

from shared.bus.tls import bus_client
from shared.bus.users import inbox_prefix
from shared.errors import BadInput
from shared.urls import server_urls, without_credentials

POLL_INTERVAL_S = 0.1
ANSWER_TIMEOUT_S = 5.0  # for a server that the user named


async def wait_until(probe: Callable[[str], Awaitable[bool]], url: str) -> None:
    """Wait, without limit, until the probe of a server succeeds."""
    while not await probe(url):  # noqa: ASYNC110  (another process answers)
        await asyncio.sleep(POLL_INTERVAL_S)


async def check_answers(probe: Callable[[str], Awaitable[bool]], url: str, what: str) -> None:
    """Raises: BadInput naming `what` if it does not answer within ANSWER_TIMEOUT_S."""
    try:
        await asyncio.wait_for(wait_until(probe, url), ANSWER_TIMEOUT_S)
    except TimeoutError:
        raise BadInput(f"{what} does not answer") from None


def check_url(option: str, url: str) -> str:
    """The URL of a gateway, without a final slash or /v1. Raises: BadInput if it is invalid."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise BadInput(f"{option} {without_credentials(url)}: accepted: a URL such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


async def nats_answers(url: str, ca: str = "") -> bool:
    """Whether one of the NATS servers in `url` answers, with JetStream; `ca` as `bus_client`. Raises: BadInput."""
    client = bus_client(url, ca)
    try:
        await client.connect(
            server_urls(url),
            inbox_prefix=inbox_prefix(url),
            allow_reconnect=False,
            max_reconnect_attempts=1,  # the default is 60 attempts, 2 s apart
            reconnect_time_wait=0,
            connect_timeout=1,
            error_cb=_ignore,
        )
        await client.jetstream(timeout=1).account_info()
    except (nats.errors.Error, OSError, TimeoutError):
        return False
    finally:
        await client.close()  # also if the server refused the user
    return True


async def postgres_answers(url: str) -> bool:
    from shared.database.schema import database_answers  # noqa: PLC0415

    return await database_answers(url)


async def gateway_ready(url: str, certificate: str = "") -> bool:
    """Whether the gateway answers and reports that requests can be served; `certificate` as `not_ready_reason`."""
    return await not_ready_reason(url, certificate) is None


async def not_ready_reason(url: str, certificate: str = "") -> str | None:
    """Why requests cannot be served, by the gateway's `/ready`, in one line. Returns: None if they can be.

    `certificate`: the file with the gateway's own certificate, if it is known. It is trusted under any name.
    """
    try:
        async with httpx.AsyncClient(timeout=2, trust_env=False, verify=_trusted(certificate)) as client:
            reply = await client.get(f"{url}/ready")
    except httpx.HTTPError:
        return "the gateway does not answer"
    if reply.status_code == httpx.codes.OK:
        return None
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):  # a proxy answered
        return f"the gateway answers with {reply.status_code}"


@cache
def _trusted(certificate: str) -> ssl.SSLContext:
    """The certificate of this file alone, or the well-known authorities. Cached, as reading them is the slowest part of
    a probe."""
    if not certificate:
        return httpx.create_ssl_context(trust_env=False)
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False  # the gateway is reached by the address of this machine
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


async def _ignore(_error: Exception) -> None:
    """Drop the error: the probe returns false."""
