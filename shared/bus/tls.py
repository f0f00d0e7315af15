"""Connections to a NATS server over TLS.

nats-py begins TLS after the server has asked for it in plain text, even with `tls://`, so that anybody in between can
prevent it; and a connection whose handshake failed never closes. Here a connection begins with its handshake.
"""

import asyncio
import ssl
import time
from urllib.parse import ParseResult

from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.transport import TcpTransport

from shared.errors import BadInput


def bus_client(url: str, ca: str) -> Client:
    """A client, not connected yet. With `tls://`, the certificate of the server must be signed by an authority in the
    PEM file `ca`, or if that is empty by one of the system's.

    Raises: BadInput if `ca` has no readable certificates.
    """
    if not url.startswith("tls://"):
        return Client()
    try:
        return _TlsClient(ssl.create_default_context(cafile=ca or None))
    except OSError as error:  # also if the file has no certificate
        raise BadInput(f"DILASERVE_NATS_CA={ca!r}: no readable certificates ({error})", "nats_ca") from None


class _TlsClient(Client):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    async def _connect_to_server(self, s: Srv) -> None:
        s.last_attempt = time.monotonic()
        self._transport = _TlsTransport(self._context)
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])


class _TlsTransport(TcpTransport):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._context = context

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        connecting = asyncio.open_connection(uri.hostname, uri.port, limit=buffer_size, ssl=self._context)
        self._io_reader, self._io_writer = await asyncio.wait_for(connecting, connect_timeout)
        self._bare_io_reader, self._bare_io_writer = self._io_reader, self._io_writer

    async def connect_tls(self, *_arguments: object, **_options: object) -> None:
        """The connection uses TLS already."""
