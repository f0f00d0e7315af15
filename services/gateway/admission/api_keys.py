"""The API keys of the database, cached in memory and read again every REFRESH_S.

While the database is unavailable, cached keys remain valid. An unknown key causes a read at once, so that a new key
works from its first request, but at most one per MIN_READ_INTERVAL_S: guessed keys do not load the database.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import structlog

from services.gateway.errors import ApiError
from shared.api_keys import ApiKey, hash_secret
from shared.database.errors import DATABASE_ERRORS
from shared.database.key_store import read_keys
from shared.database.schema import open_database, upgrade
from shared.errors import RetryLater
from shared.tasks import during, pause

log = structlog.get_logger(__name__)

REFRESH_S = 2.0  # the longest time for which a revoked key remains valid
MIN_READ_INTERVAL_S = 0.5
READ_TIMEOUT_S = 5.0
BEARER = "bearer "


class ApiKeyCache:
    """Maps an Authorization header to a key."""

    def __init__(self, database_url: str) -> None:
        """Raises: BadInput if the URL is invalid."""
        self._engine = open_database(database_url)
        self._keys: dict[str, ApiKey] = {}  # by the secret's hash
        self._unavailable = True  # whether the last read failed
        self._upgraded = False
        self._read_s = 0.0  # loop time at which the last read began
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Read the keys periodically within the block."""
        try:
            async with during(self._refresh()):
                yield
        finally:
            await self._engine.dispose()

    @property
    def valid(self) -> list[ApiKey]:
        """The keys that are not revoked, the oldest first."""
        return [key for key in self._keys.values() if key.revoked_at is None]

    async def identify(self, headers: Mapping[str, str]) -> ApiKey:
        """Raises: ApiError 401 if the headers have no valid key; RetryLater if the key is unknown and the database
        unavailable."""
        hashed = hash_secret(_secret_of(headers))
        if hashed not in self._keys:
            await self._read()
        key = self._keys.get(hashed)
        if key is None and self._unavailable:
            raise RetryLater("cannot read the API keys: the database is unavailable")
        if key is None or key.revoked_at is not None:
            raise _unauthorized("the API key is not valid")
        return key

    async def _refresh(self) -> None:
        while True:
            await self._read()
            await pause(REFRESH_S)

    async def _read(self) -> None:
        """Read the keys. Callers share a read that begins after their calls."""
        clock = asyncio.get_running_loop().time
        called_s = clock()
        async with self._lock:
            if self._read_s >= called_s:
                return
            await asyncio.sleep(max(0.0, self._read_s + MIN_READ_INTERVAL_S - clock()))
            self._read_s = clock()
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    if not self._upgraded:
                        await upgrade(self._engine)
                        self._upgraded = True
                    self._keys = await read_keys(self._engine)
                self._unavailable = False
            except DATABASE_ERRORS as error:
                self._unavailable = True
                log.warning("cannot read API keys", error=str(error).partition("\n")[0] or repr(error))


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _secret_of(headers: Mapping[str, str]) -> str:
    """The key in OpenAI's header, or else in Anthropic's or Azure's; a proxy may use `Authorization` for itself."""
    authorization = headers.get("authorization", "")
    if authorization.lower().startswith(BEARER):
        return authorization[len(BEARER) :].strip()
    if secret := headers.get("x-api-key") or headers.get("api-key"):
        return secret
    raise _unauthorized("an API key is required: Authorization: Bearer KEY, x-api-key: KEY or api-key: KEY")
