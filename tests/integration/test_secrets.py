"""No password of an address is printed, also not a part of it, whatever characters it has."""

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from structlog.testing import capture_logs

import shared.telemetry
from dilaserve.cli import run
from dilaserve.stack import probes
from services.gateway.settings import GatewaySettings
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.client import Bus
from shared.database.schema import database_answers
from shared.errors import BadInput, DilaserveError
from shared.settings import ServiceSettings, check_nats_url, read_settings
from shared.tasks import cancel
from shared.urls import without_credentials

HIDDEN = ("Qx1", "Zk2", "Wv3")  # the parts of each password
SYMBOLS = "@ # ? % / : & , [ ] = :// %2F @/ @? @# @: ?@ a@b:1/ ,nats://"
PASSWORDS = [f"{each}".join(HIDDEN) for each in SYMBOLS.split()]


def check(printed: str) -> None:
    assert not [part for part in HIDDEN if part in printed], printed


def addresses(scheme: str, rest: str) -> Iterator[str]:
    yield from (f"{scheme}://gateway:{password}@127.0.0.1:1{rest}" for password in PASSWORDS)


@pytest.mark.parametrize("scheme", ["nats", "tls", "postgresql", "postgresql+asyncpg", "http", "https"])
def test_a_shown_address_has_its_host_and_no_part_of_a_password(scheme: str) -> None:
    for address in addresses(scheme, ""):
        shown = without_credentials(address)
        check(shown)
        assert shown.endswith("127.0.0.1:1")
        check(without_credentials(address.removeprefix(f"{scheme}://")))
        check(without_credentials(f"{address},{address}"))
    for password in PASSWORDS:
        check(without_credentials(f"{scheme}://127.0.0.1:1/name?user=me&password={password}"))


@pytest.mark.parametrize(
    ("kind", "name", "entry"),
    [
        (ServiceSettings, "NATS_URL", "nats://me:{}@127.0.0.1:1"),
        (ServiceSettings, "OTLP_ENDPOINT", "http://me:{}@127.0.0.1:1"),
        (ReconfiguratorSettings, "WORKER_NATS_URL", "nats://me:{}@127.0.0.1:1"),
        (GatewaySettings, "TRACE_URL", "http://me:{}@127.0.0.1:1"),
        (GatewaySettings, "ALLOWED_ORIGINS", "http://me:{}@127.0.0.1:1"),
        (GatewaySettings, "PORT", "me:{}@1"),
    ],
)
def test_a_refused_setting_shows_no_part_of_a_password(kind: type[ServiceSettings], name: str, entry: str) -> None:
    refused = 0
    for password in PASSWORDS:
        environ = {"DILASERVE_MODEL": "m", f"DILASERVE_{name}": entry.format(password)}
        try:
            read_settings(kind, environ)
        except BadInput as error:
            check(str(error))
            refused += 1
    assert refused


async def test_a_connection_that_fails_logs_no_part_of_a_password() -> None:
    async def connect(url: str) -> None:
        try:
            check_nats_url(url, "--nats-url")
        except BadInput:
            return
        connecting = asyncio.create_task(Bus.connect(url, "cell0", name="test"))
        done, _ = await asyncio.wait({connecting}, timeout=0.5)
        assert not done
        await cancel([connecting])

    with capture_logs() as logs:
        await asyncio.gather(*map(connect, addresses("nats", "")))
    check(str(logs))


async def test_a_database_that_does_not_answer_shows_no_part_of_a_password() -> None:
    for address in addresses("postgresql", "/name"):
        try:
            assert not await database_answers(address)
        except BadInput as error:
            check(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "arguments"),
    [
        ("NATS_URL", ["cell-config"]),
        ("STATUS_NATS_URL", ["doctor"]),
        ("", ["up", "--nats-url"]),
        ("", ["status", "--url", "http://127.0.0.1:1", "--nats-url"]),
        ("", ["drain", "--nats-url"]),
        ("", ["keys", "list", "--database-url"]),
        ("", ["up", "--database-url"]),
    ],
    ids=str,
)
def test_a_command_prints_no_part_of_a_password(
    variable: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probes, "ANSWER_TIMEOUT_S", 0.05)
    scheme = "postgresql" if arguments[-1] == "--database-url" else "nats"
    for address in addresses(scheme, ""):
        given = list(arguments)
        if variable:
            monkeypatch.setenv(f"DILASERVE_{variable}", address)
        else:
            given.append(address)
        run(given)
        printed = capsys.readouterr()
        assert printed.out + printed.err
        check(printed.out + printed.err)


def test_a_collector_that_refuses_spans_logs_no_part_of_a_password(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    providers: list[TracerProvider] = []
    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)  # only one can be set, for all later tests
    monkeypatch.setattr(shared.telemetry, "SHUTDOWN_S", 0.2)
    for address in addresses("http", ""):
        try:
            endpoint = read_settings(ServiceSettings, {"DILASERVE_OTLP_ENDPOINT": address}).otlp_endpoint
        except DilaserveError:
            continue
        with shared.telemetry.telemetry("test", endpoint):
            providers[-1].get_tracer("test").start_span("step").end()
    assert providers
    assert caplog.text
    check(caplog.text)
