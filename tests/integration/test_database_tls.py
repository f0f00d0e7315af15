"""TLS to a real Postgres. The embedded server has none, so a proxy in front of it accepts TLS as Postgres does."""

import asyncio
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from shared.database.schema import database_answers, open_database, upgrade
from shared.errors import BadInput
from tests.support.certificates import Certificate, make_certificate
from tests.support.postgres import PostgresServer

SSL_REQUEST = bytes.fromhex("0000000804d2162f")  # of Postgres's protocol, before TLS


class TlsFront(socketserver.ThreadingTCPServer):
    """Passes TLS connections on to a server's socket. Without a certificate it refuses TLS, as a server may."""

    def __init__(self, server: Path, certificate: Certificate | None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.server = server
        self.tls = certificate.server_context() if certificate else None
        self.encrypted = 0  # connections

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Accept connections during the body."""
        thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.shutdown)
            thread.join()
            await asyncio.to_thread(self.server_close)  # waits for the connections


class _Connection(socketserver.BaseRequestHandler):
    server: TlsFront

    def handle(self) -> None:
        client, first = self.request, self.request.recv(8)
        if first == SSL_REQUEST:
            client.sendall(b"S" if self.server.tls else b"N")
            first = b""
            if self.server.tls:
                try:
                    client = self.server.tls.wrap_socket(client, server_side=True)
                except OSError:  # the client refuses the certificate
                    return
                self.server.encrypted += 1
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(str(self.server.server))
            server.sendall(first)
            while True:
                has_data = isinstance(client, ssl.SSLSocket) and client.pending()
                for source in [client] if has_data else select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    (server if source is client else client).sendall(data)


async def test_the_servers_certificate_is_checked_as_the_url_requires(
    postgres_server: PostgresServer, certificate: Certificate, tmp_path: Path
) -> None:
    front, trusted = TlsFront(postgres_server.socket, certificate), certificate.certificate
    other = make_certificate(tmp_path / "other").certificate

    async def answers(host: str, mode: str, authority: Path | None = None) -> bool:
        root = f"&sslrootcert={authority}" if authority else ""
        return await database_answers(f"postgresql://postgres@{host}:{front.port}/postgres?sslmode={mode}{root}")

    async with front.listening():
        assert await answers("localhost", "verify-full", trusted)
        assert await answers("127.0.0.1", "verify-ca", trusted)
        assert await answers("127.0.0.1", "require")
        assert front.encrypted == 3
        assert not await answers("127.0.0.1", "verify-full", trusted), "the certificate has another name"
        assert not await answers("localhost", "verify-full", other), "another authority"
        assert not await answers("localhost", "verify-full"), "not an authority of the system"


async def test_the_tables_are_created_over_tls(
    postgres_server: PostgresServer, database: AsyncEngine, certificate: Certificate
) -> None:
    front = TlsFront(postgres_server.socket, certificate)
    async with front.listening():
        url = f"postgresql://postgres@localhost:{front.port}/postgres?sslmode=verify-full"
        over_tls = open_database(f"{url}&sslrootcert={certificate.certificate}")
        await upgrade(over_tls)
        async with database.connect() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM requests"))).scalar_one() == 0
        await over_tls.dispose()
    assert front.encrypted


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_server_without_tls_is_refused(
    mode: str, postgres_server: PostgresServer, certificate: Certificate
) -> None:
    front = TlsFront(postgres_server.socket, None)
    root = f"&sslrootcert={certificate.certificate}" if mode != "require" else ""
    async with front.listening():
        url = f"postgresql://postgres@localhost:{front.port}/postgres"
        assert await database_answers(f"{url}?sslmode=prefer")
        assert not await database_answers(f"{url}?sslmode={mode}{root}")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("sslmode=full", "sslmode=full in the database URL: accepted: disable, allow, prefer, require, verify-ca,"),
        ("sslmode=require&sslmode=disable", "accepted: disable, allow"),
        ("sslrootcert=ca.pem", "needs sslmode=verify-ca or sslmode=verify-full"),
        ("sslmode=require&sslrootcert=ca.pem", "needs sslmode=verify-ca or sslmode=verify-full"),
        ("sslmode=verify-full&sslrootcert=missing.pem", "sslrootcert=missing.pem in the database URL: no readable"),
        ("sslmode=verify-full&sslrootcert=/dev/null", "sslrootcert=/dev/null in the database URL: no readable"),
        ("sslcert=x", "unknown parameter sslcert in the database URL; for TLS use"),
    ],
)
def test_invalid_parameters_of_tls_are_rejected(parameters: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        open_database(f"postgresql://postgres@localhost/postgres?{parameters}")
    assert message in refused.value.message
