"""`Idempotency-Key`: maps a key to one request id and cell for a day, at every gateway and across restarts."""

import hashlib
from contextlib import suppress

from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

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
        self._bucket: KeyValue | None = None

    async def claim(self, owner: str, key: str, path: str, body: str, cell: str | None) -> tuple[str, str | None]:
        """The id of the request that `key` of this `owner` names, and the name of its cell. A new key gets `cell`;
        without one (None), the key is not stored.

        Raises: ApiError 400 if the key is invalid, 422 if it was used with another body; RetryLater if the bus is
        unavailable.
        """
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            message = f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} characters"
            raise ApiError(400, message, param="Idempotency-Key", code="invalid_value")
        request_id = "idem-" + _digest(owner, key)[:40]
        fingerprint = _digest(path, body)
        claim = await self._first_claim(request_id, fingerprint, cell)
        if claim is not None and claim.fingerprint != fingerprint:
            message = "this Idempotency-Key was used with another body; use a new key"
            raise ApiError(422, message, param="Idempotency-Key", code="idempotency_key_reused")
        return request_id, None if claim is None else claim.cell

    async def cell_of(self, request_id: str, cell: str | None) -> str | None:
        """The cell of a request that has its own id: `cell`, unless another one was claimed. Raises: RetryLater."""
        claim = await self._first_claim(request_id, "", cell)
        return None if claim is None else claim.cell

    async def _first_claim(self, request_id: str, fingerprint: str, cell: str | None) -> Claim | None:
        """Store a claim unless the request has one or `cell` is None. Returns: the stored claim."""
        bus = self._connection.bus
        with bus_errors("look up the Idempotency-Key"):
            if self._bucket is None:
                self._bucket = await bus.js.key_value(bus.subjects.claims_bucket)
            if cell is not None:
                claim = Claim(fingerprint=fingerprint, cell=cell)
                with suppress(KeyWrongLastSequenceError):
                    await self._bucket.create(request_id, encode(claim))
                    return claim
            with suppress(KeyNotFoundError):
                return decode((await self._bucket.get(request_id)).value or b"", Claim)
        return None


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
