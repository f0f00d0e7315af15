"""`Idempotency-Key`: one key names one request, for a day, whichever gateway is asked and whatever is restarted."""

import hashlib

import nats.errors
from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError

from services.gateway.api.errors import ApiError
from services.gateway.bus_connection import BusConnection
from shared.bus.codec import decode, encode
from shared.errors import RetryLater
from shared.messages.gateway import Claim

LONGEST_KEY = 255  # characters


class IdempotencyKeys:
    """Remembers on the bus which body came with which key."""

    def __init__(self, link: BusConnection) -> None:
        self._link = link

    async def claim(self, owner: str, key: str, path: str, body: str) -> str:
        """The id of the request that the `key` of this `owner` names.

        Raises: ApiError 400 for a key that is none, 422 if it came with another body; RetryLater if the bus is away.
        """
        if not 1 <= len(key) <= LONGEST_KEY:
            message = f"Idempotency-Key must have 1 to {LONGEST_KEY} characters"
            raise ApiError(400, message, param="Idempotency-Key", code="invalid_value")
        name = "idem-" + _digest(owner, key)[:40]
        claim = Claim(fingerprint=_digest(path, body))
        if await self._first(name, claim) != claim:
            message = "this Idempotency-Key came with another request before; take a new one"
            raise ApiError(422, message, param="Idempotency-Key", code="idempotency_key_reused")
        return name

    async def _first(self, name: str, claim: Claim) -> Claim:
        """Store `claim` unless there is one. Returns: the one that is there."""
        bus = self._link.bus
        try:
            bucket = await bus.js.key_value(bus.subjects.claims_bucket)
            try:
                await bucket.create(name, encode(claim))
            except KeyWrongLastSequenceError:
                return decode((await bucket.get(name)).value or b"", Claim)
        except KeyNotFoundError:
            raise RetryLater("the Idempotency-Key has just been forgotten") from None
        except (nats.errors.Error, APIError, TimeoutError) as error:
            raise RetryLater(f"the Idempotency-Key cannot be looked up: {error!r}") from error
        return claim


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
