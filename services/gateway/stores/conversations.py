"""`previous_response_id`: the stored inputs of responses, for clients that continue one without sending it again.

The text of a response is that of its outcome, so both are kept equally long.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from services.gateway.bus_connection import BusConnection
from services.gateway.errors import ApiError
from shared.api_keys import ApiKey
from shared.bus.codec import decode, encode
from shared.bus.errors import bus_errors
from shared.messages.gateway import Conversation
from shared.messages.requests import ChatMessage, Outcome, OutcomeStatus

PARAM = "previous_response_id"
ID_PREFIX = "resp_"  # of a response, before the id of its request
REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Conversations:
    """The conversations of one model. Every method raises RetryLater if the bus does not answer."""

    def __init__(self, connections: Mapping[str, BusConnection], first: str) -> None:
        """`connections`: of the model's cells, by name; `first` has the conversations."""
        self._connections = connections
        self._first = first

    async def keep(self, request_id: str, cell: str, messages: Sequence[ChatMessage], key: ApiKey) -> None:
        """Store the messages of a response that `cell` serves, earlier ones included."""
        with bus_errors("store the response"):
            conversation = Conversation(owner=key.key_id, messages=list(messages), cell=cell)
            await (await self._bucket()).put(request_id, encode(conversation))

    async def find(self, response_id: str, key: ApiKey) -> list[ChatMessage]:
        """The messages up to this response, with its text.

        Raises: ApiError 400 if the key's responses are not stored, or the key has no such response.
        """
        if not key.stores_responses:
            reason = "the responses of this API key are not stored; send the earlier messages in input"
            message = f"{PARAM} is not supported, as {reason}"
            raise ApiError(400, message, param=PARAM, code="unsupported_value")
        request_id, conversation = response_id.removeprefix(ID_PREFIX), None
        if REQUEST_ID.fullmatch(request_id):
            with bus_errors("read the response"), suppress(KeyNotFoundError):
                entry = await (await self._bucket()).get(request_id)
                conversation = decode(entry.value or b"", Conversation)
        outcome = None
        if conversation is not None and conversation.owner == key.key_id:
            cell = self._connections.get(conversation.cell or self._first)
            outcome = await cell.bus.outcome(request_id) if cell is not None else None
        if conversation is None or outcome is None or outcome.status is not OutcomeStatus.COMPLETED:
            reason = "it never completed, was not stored, or is more than a day old"
            message = f"{PARAM}: the previous response {response_id[:80]!r} is not found: {reason}"
            raise ApiError(400, message, param=PARAM, code="previous_response_not_found")
        return [*conversation.messages, ChatMessage(role="assistant", content=outcome.text)]

    async def outcome(self, request_id: str, key: ApiKey) -> Outcome | None:
        """That of a request of the key, in whichever cell; None: there is none."""
        for connection in self._connections.values():
            outcome = await connection.bus.outcome(request_id)
            if outcome is not None and outcome.key == key.key_id:
                return outcome
        return None

    async def _bucket(self) -> KeyValue:
        bus = self._connections[self._first].bus
        return await bus.js.key_value(bus.subjects.conversations_bucket)
