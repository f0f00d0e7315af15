"""The HTTP server, which can leave a port that other gateways serve too."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from services.gateway.http_protocol import BoundedHttpProtocol

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
