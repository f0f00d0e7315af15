"""Notices a broken connection to the bus within seconds, and reports each reconnect."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from nats.aio.client import Client

from shared.tasks import run_beside

PING_S = 2.0  # interval of pings; the connection is broken after two without an answer
UNANSWERED_S = 5.0  # data without an acknowledgement for longer breaks the connection: then pings wait behind the data


class Reconnects:
    """The reconnects of one client."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], object]] = []
        self._next = asyncio.Event()

    def subscribe(self, callback: Callable[[], object]) -> None:
        """Call `callback` after each reconnect: messages of the old connection may be lost."""
        self._callbacks.append(callback)

    def report(self) -> None:
        self._next.set()
        self._next = asyncio.Event()
        for callback in self._callbacks:
            callback()

    async def run_until_next(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine until it ends, or the next reconnect cancels it. Raises: its error."""
        await run_beside(coroutine, [self._next.wait()])


def limit_unanswered_time(client: Client) -> None:
    """Have the kernel break the client's connection if its data are not acknowledged for UNANSWERED_S."""
    writer = getattr(client._transport, "_io_writer", None)
    connection = writer.get_extra_info("socket") if writer is not None else None
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * UNANSWERED_S))
