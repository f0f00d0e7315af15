"""The HTTP server, which can leave a port that other gateways serve too, its listening sockets, and their TLS."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn

from services.gateway.http_protocol import BoundedHttpProtocol
from services.gateway.settings import GatewaySettings
from shared.errors import BadInput, DilaserveError
from shared.urls import url_host

OPTIONS = "--tls-certificate and --tls-key, or DILASERVE_TLS_CERTIFICATE and DILASERVE_TLS_KEY"


def listen(host: str, port: int) -> socket.socket:
    """Raises: DilaserveError if the port is taken or the host is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]  # Python adds the address
        raise DilaserveError(f"cannot listen on {url_host(host)}:{port}: {reason}") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it: no 40 ms waits
    return listener


def listeners(settings: GatewaySettings) -> list[socket.socket]:
    """The socket of the API, and with a metrics port one of this gateway alone. Raises: as `listen`; BadInput."""
    found = [listen(settings.host, settings.port) if settings.listener_fd is None else _inherited(settings.listener_fd)]
    if settings.metrics_port:
        found.append(listen(settings.metrics_host, settings.metrics_port))
    return found


def _inherited(descriptor: int) -> socket.socket:
    try:
        return socket.socket(fileno=descriptor)
    except OSError as error:
        raise BadInput(f"DILASERVE_LISTENER_FD={descriptor}: {error.strerror}; accepted: a listening socket") from None


def server_tls(certificate: str, key: str) -> ssl.SSLContext | None:
    """The context of a server; None: both are empty, for plain HTTP. Raises: BadInput if they cannot be used."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise BadInput(f"a certificate and its key must be set together: {OPTIONS}", "tls_certificate")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password="")  # None: a question on the terminal
    except OSError as error:  # SSLError is one, too
        files = f"DILASERVE_TLS_CERTIFICATE={certificate!r}, DILASERVE_TLS_KEY={key!r}"
        accepted = "accepted: a PEM certificate and its key without a password"
        raise BadInput(f"{files}: {accepted} ({error.strerror or error})", "tls_certificate") from None
    return context


CLOSE = (b"connection", b"close")
LAST_REQUEST_S = 5  # in which a request on an idle connection is still served, when the gateway leaves its port
CHECK_S = 0.05  # between two looks at the open connections


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the gateway handles the signals, and drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit` is set; accept no connection if it is set before the start. Close the sockets."""
        try:
            if not self.should_exit:
                await super().serve(sockets)
        finally:
            for each in sockets or ():
                each.close()

    async def leave_port(self, within_s: float) -> None:
        """Accept no more connections. Close each open one after the next response that begins, or if it is idle for
        LAST_REQUEST_S. Return when none is open, at latest `within_s` after the server has started.

        The other gateways accept the connections that the system has queued, because they share the socket.
        """
        while not (self.started or self.should_exit):  # noqa: ASYNC110  (uvicorn reports no start)
            await asyncio.sleep(CHECK_S)
        servers, loop = self.servers if self.started else [], asyncio.get_running_loop()
        for listening in [each for server in servers for each in server.sockets]:
            loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)  # until the connections just accepted are open: closing the server would drop them
        for each in servers:
            each.close()
        # For all responses that begin from now on; uvicorn makes its default headers of the encoded ones each second
        self.config.encoded_headers.append(CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.sleep(CHECK_S)  # until a connection that was just accepted is among them
                for connection in self.server_state.connections:
                    assert isinstance(connection, BoundedHttpProtocol), "there are no WebSockets"
                    connection.limit_keep_alive(LAST_REQUEST_S)
                while self.server_state.connections:  # noqa: ASYNC110  (uvicorn reports no end)
                    await asyncio.sleep(CHECK_S)
