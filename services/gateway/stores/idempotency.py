"""`Idempotency-Key`: maps a key to one request id and cell for a day, at every gateway and across restarts."""

import hashlib
from contextlib import suppress

import structlog
from msgspec.structs import replace
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from services.gateway.bus_connection import BusConnection
from services.gateway.errors import ApiError
from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.bus.errors import bus_errors
from shared.errors import RetryLater
from shared.messages.gateway import Claim

log = structlog.get_logger(__name__)

MAX_KEY_LENGTH = 255  # characters


class IdempotencyKeys:
    """Stores on the bus the body that each key was first used with."""

    def __init__(self, connection: BusConnection) -> None:
        self._connection = connection
        self._buckets: dict[str, KeyValue] = {}  # by cell

    async def claim(self, owner: str, key: str, path: str, body: str, cell: str | None) -> tuple[str, Claim | None]:
        """The id of the request that `key` of this `owner` names, and its claim. A new key gets `cell`; without one
        (None), the key is not stored.

        Raises: ApiError 400 if the key is invalid, 422 if it was used with another body; RetryLater if the bus is
        unavailable.
        """
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            message = f"Idempotency-Key must have 1 to {MAX_KEY_LENGTH} characters"
            raise ApiError(400, message, param="Idempotency-Key", code="invalid_value")
        request_id = "idem-" + _digest(owner, key)[:40]
        fingerprint = _digest(path, body)
        claim = await self.first_claim(request_id, fingerprint, cell)
        if claim is not None and claim.fingerprint != fingerprint:
            message = "this Idempotency-Key was used with another body; use a new key"
            raise ApiError(422, message, param="Idempotency-Key", code="idempotency_key_reused")
        return request_id, claim

    async def confirm(self, cell: BusConnection, request_id: str, claim: Claim) -> None:
        """Note in the cell that its bus has stored the request: its next scheduler then notices if the bus loses it."""
        if claim.is_stored:
            return
        try:
            with bus_errors("confirm the claim"):
                await (await self._opened(cell.bus)).put(request_id, encode(replace(claim, is_stored=True)))
        except RetryLater as error:  # the request is served all the same
            log.warning("claim not confirmed", request_id=request_id, error=str(error))

    async def first_claim(self, request_id: str, fingerprint: str, cell: str | None) -> Claim | None:
        """Store a claim unless the request has one or `cell` is None. Returns: the stored claim. `fingerprint`: empty
        for a request that has its own id. Raises: RetryLater if the bus is unavailable."""
        bus = self._connection.bus
        with bus_errors("look up the Idempotency-Key"):
            bucket = await self._opened(bus)
            if cell is not None:
                claim = Claim(fingerprint=fingerprint, cell=cell)
                with suppress(KeyWrongLastSequenceError):
                    await bucket.create(request_id, encode(claim))
                    return claim
            with suppress(KeyNotFoundError):
                return decode((await bucket.get(request_id)).value or b"", Claim)
        return None

    async def _opened(self, bus: Bus) -> KeyValue:
        """Raises: bus errors."""
        cell = bus.subjects.cell
        if cell not in self._buckets:
            self._buckets[cell] = await bus.js.key_value(bus.subjects.claims_bucket)
        return self._buckets[cell]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
