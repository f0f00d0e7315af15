"""`Idempotency-Key`: maps a key to one request id for a day, at every gateway of the cell and across restarts."""

import hashlib

from nats.js.errors import KeyWrongLastSequenceError

from services.gateway.api.errors import ApiError
from services.gateway.bus_connection import BusConnection
from shared.bus.codec import decode, encode
from shared.bus.errors import bus_errors
from shared.messages.gateway import Claim

MAX_KEY_LENGTH = 255  # characters


class IdempotencyKeys:
    """Stores on the bus the body that each key was first used with."""

    def __init__(self, connection: BusConnection) -> None:
        self._connection = connection

    async def claim(self, owner: str, key: str, path: str, body: str) -> str:
        """The id of the request that `key` of this `owner` names.

        Raises: ApiError 400 if the key is invalid, 422 if it was used with another body; RetryLater if the bus is
        unavailable.
        """
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            message = f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} characters"
            raise ApiError(400, message, param="Idempotency-Key", code="invalid_value")
        request_id = "idem-" + _digest(owner, key)[:40]
        claim = Claim(fingerprint=_digest(path, body))
        if await self._first_claim(request_id, claim) != claim:
            message = "this Idempotency-Key was used with another body; use a new key"
            raise ApiError(422, message, param="Idempotency-Key", code="idempotency_key_reused")
        return request_id

    async def _first_claim(self, request_id: str, claim: Claim) -> Claim:
        """Store `claim` unless the request has one. Returns: the stored claim."""
        bus = self._connection.bus
        with bus_errors("look up the Idempotency-Key"):
            bucket = await bus.js.key_value(bus.subjects.claims_bucket)
            try:
                await bucket.create(request_id, encode(claim))
            except KeyWrongLastSequenceError:
                return decode((await bucket.get(request_id)).value or b"", Claim)
        return claim


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
