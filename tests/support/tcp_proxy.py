"""A TCP proxy between clients and one server, which can lose data and reset connections."""

import asyncio
from collections.abc import Collection
from contextlib import suppress


class TcpProxy:
    """Passes bytes on in both directions."""

    def __init__(self, port: int) -> None:
        """`port` of the server on this machine."""
        self._server_port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._to_clients: set[asyncio.StreamWriter] = set()
        self._dropped = bytearray()
        self._drops = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._silent: set[asyncio.StreamWriter] = set()  # whose bytes are dropped

    async def start(self) -> int:
        """Listen. Returns: the port for clients."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self.reset()
        if self._listener is not None:
            self._listener.close()

    async def has_dropped(self, data: bytes) -> None:
        """Wait until these bytes were dropped."""
        while data not in self._dropped:
            await self._drops.wait()
            self._drops.clear()

    def reset(self, client_ports: Collection[int] | None = None) -> None:
        """Break the connections of these clients, by default all; clients may connect again."""
        chosen = self._writers if client_ports is None else self._clients_at(client_ports)
        for writer in chosen:
            writer.transport.abort()
        self._writers -= set(chosen)

    def silence(self, client_ports: Collection[int] | None = None) -> None:
        """Drop the server's bytes to these present clients, by default all, as on a link that was cut."""
        self._silent |= self._to_clients if client_ports is None else self._clients_at(client_ports)

    def _clients_at(self, ports: Collection[int]) -> set[asyncio.StreamWriter]:
        return {writer for writer in self._to_clients if writer.get_extra_info("peername")[1] in ports}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_server}
        self._to_clients.add(writer)
        await asyncio.gather(self._pass_on(reader, to_server), self._pass_on(from_server, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if writer in self._silent:
                    self._dropped += data
                    self._drops.set()
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
