"""The message that brought a request, without its content."""

import asyncio
from dataclasses import dataclass, field
from typing import Self

from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.bus.codec import is_json


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request's message on the stream; redeliveries of the message are equal."""

    sequence: int  # of the stream
    json: bool = field(compare=False)  # whether the outcome is JSON, as the request is
    _reply: str = field(compare=False)  # subject of the acknowledgement
    _client: Client = field(compare=False, repr=False)
    _is_void: asyncio.Event = field(repr=False)  # its stream was deleted; a new one counts from 1 again

    @classmethod
    def of(cls, msg: Msg, client: Client, is_void: asyncio.Event) -> Self:
        return cls(msg.metadata.sequence.stream, is_json(msg.data), msg.reply, client, is_void)

    @property
    def is_void(self) -> bool:
        return self._is_void.is_set()

    async def acknowledge(self) -> None:
        """Remove the message from the stream. Raises: bus errors."""
        if not self.is_void:
            await self._client.publish(self._reply, Msg.Ack.Ack)
