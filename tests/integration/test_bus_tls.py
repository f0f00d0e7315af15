"""Connections to the bus: with TLS, and of a service whose user the bus no longer accepts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dilaserve.stack.probes import nats_answers
from services.predictor.settings import PredictorSettings
from shared.bus.client import Bus
from shared.service import Service, run_service
from shared.tasks import during
from tests.support.certificates import Certificate, make_certificate
from tests.support.nats import NatsServer, fail_to_connect, started_server
from tests.support.services import STOP_S, service
from tests.support.waiting import reached

LIMIT_S = 20.0


@pytest.fixture
def server(certificate: Certificate, tmp_path: Path) -> Iterator[NatsServer]:
    files = f'cert_file: "{certificate.certificate}", key_file: "{certificate.key}"'
    with started_server(tmp_path, more=f"tls {{ {files}, handshake_first: true }}\n") as started:
        yield started


def address(server: NatsServer, host: str = "localhost") -> str:
    return f"tls://{host}:{server.port}"


@pytest.mark.slow
async def test_the_bus_works_over_tls_and_connects_again(server: NatsServer, certificate: Certificate) -> None:
    bus = await Bus.connect(address(server), "cell0", name="test", ca=str(certificate.certificate))
    await bus.set_up()
    server.stop(kill=True)
    server.start()
    async with asyncio.timeout(LIMIT_S):
        await bus.set_up()
    assert (await bus.js.publish(bus.subjects.requests, b"{}")).stream == "REQUESTS-cell0"
    await bus.close()


async def test_a_server_without_a_trusted_certificate_is_refused(
    server: NatsServer, certificate: Certificate, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path / "other").certificate
    assert await nats_answers(address(server), str(certificate.certificate))
    assert not await nats_answers(address(server), str(other))
    assert not await nats_answers(address(server))
    assert not await nats_answers(address(server, host="127.0.0.1"), str(certificate.certificate))


async def test_a_refused_certificate_is_logged_once_while_the_service_retries(
    server: NatsServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail_to_connect(address(server), "cell0", monkeypatch)
    assert capsys.readouterr().out.count("CERTIFICATE_VERIFY_FAILED") == 1


async def test_no_password_is_sent_to_a_server_without_tls(certificate: Certificate) -> None:
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576}\r\n')
        while chunk := await reader.read(1024):
            received.extend(chunk)
            if b"PING" in chunk:
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        secret = f"worker:secret@localhost:{port}"
        assert not await nats_answers(f"tls://{secret}", str(certificate.certificate))
        assert received
        assert b"secret" not in received
        assert not await nats_answers(f"nats://{secret}", str(certificate.certificate))
        assert b"secret" in received


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_wrong_file_of_authorities_is_one_line_and_status_2(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = tmp_path / "ca.pem"
    if text is not None:
        ca.write_text(text)

    def prepare(_settings: PredictorSettings) -> Service:
        raise AssertionError

    environ = {"DILASERVE_NATS_CA": str(ca), "DILASERVE_NATS_URL": "tls://h", "DILASERVE_MODEL": "m"}
    assert run_service("predictor", PredictorSettings, prepare, asyncio.run, environ) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"DILASERVE_NATS_CA='{ca}': no readable certificates" in line


CELL = "refused"


def users(password: str) -> str:
    own = '{ user: test, password: "test" }'
    return f'authorization {{ users: [ {own}, {{ user: service, password: "{password}" }} ] }}\n'


@pytest.fixture
def with_users(tmp_path: Path) -> Iterator[NatsServer]:
    with started_server(tmp_path, more=users("first")) as started:
        yield started


@pytest.mark.parametrize("name", ["scheduler", pytest.param("gateway", marks=pytest.mark.slow)])
async def test_a_service_ends_when_the_bus_refuses_its_user(
    name: str, with_users: NatsServer, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """nats-py does not connect again after such an error."""
    bus = await Bus.connect(with_users.url.replace("//", "//test:test@"), CELL, name="test")
    await bus.set_up()
    url, log = with_users.url.replace("//", "//service:first@"), tmp_path / "log"
    settings = {"nats_url": url, "cell": CELL, "model": tiny_model_dir, "model_name": "tiny", "port": 0}
    health = await bus.nc.subscribe(bus.subjects.health(name))
    with service(name, settings | {"policy": "fixed"}, log) as process:
        await health.next_msg(timeout=STOP_S)
        with_users.reload(users("second"))
        await reached(lambda: process.poll() is not None or "the bus refuses the user" in log.read_text())
        if process.poll() is not None:
            assert process.returncode == 1
            assert "the bus has ended the connection" in log.read_text()
    await bus.close()


async def test_a_connection_with_data_left_to_send_reports_its_end(with_users: NatsServer) -> None:
    bus = await Bus.connect(with_users.url.replace("//", "//service:first@"), CELL, name="test")

    async def publish() -> None:
        while bus.nc.is_connected:
            await bus.nc.publish("subject", b"data")
            await asyncio.sleep(0)

    async with during(publish()):
        with_users.reload(users("second"))
        await reached(lambda: bus.closed.is_set() or bus.nc.is_reconnecting)
    await bus.close()
