"""Who asks: the API keys of the database, kept in memory and read anew every few seconds.

While the database is away, the keys read last go on being valid. A key not known is looked for at once, so that a
new one works from its first request, but not more often than every MISS_S: guessing costs the database nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog
from sqlalchemy.exc import SQLAlchemyError

from services.gateway.api.errors import ApiError
from shared.api_keys import ApiKey, hash_secret
from shared.database.key_store import read_keys
from shared.database.schema import open_database, upgrade
from shared.errors import RetryLater
from shared.tasks import cancel

log = structlog.get_logger(__name__)

REFRESH_S = 2.0  # how long a revoked key may still be valid
MISS_S = 0.5
ANSWER_S = 5.0  # a database silent for so long is away
BEARER = "bearer "


class ApiKeyCache:
    """Turns an Authorization header into a key."""

    def __init__(self, database_url: str) -> None:
        """Raises: BadInput if the URL is none."""
        self._engine = open_database(database_url)
        self._keys: dict[str, ApiKey] = {}
        self._away = True  # whether the last reading failed
        self._upgraded = False
        self._read_s = 0.0  # loop time of the last reading's start
        self._reading = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Read the keys again and again meanwhile."""
        task = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            await cancel([task])
            await self._engine.dispose()

    async def identify(self, authorization: str) -> ApiKey:
        """Raises: ApiError 401 if the header names no valid key; RetryLater if it names none that was read before, and
        none can be read."""
        if not authorization.lower().startswith(BEARER):
            raise _refused("an API key is needed: Authorization: Bearer KEY")
        hashed = hash_secret(authorization[len(BEARER) :].strip())
        if hashed not in self._keys:
            await self._read_since(asyncio.get_running_loop().time())
        key = self._keys.get(hashed)
        if key is None and self._away:
            raise RetryLater("the API keys cannot be read: the database is away")
        if key is None or key.revoked_at is not None:
            raise _refused("the API key is not valid")
        return key

    async def _keep(self) -> None:
        while True:
            await self._read_since(asyncio.get_running_loop().time())
            await asyncio.sleep(REFRESH_S)

    async def _read_since(self, since_s: float) -> None:
        """Have the keys as they were at `since_s` (loop time) or later; one reading serves all who wait."""
        async with self._reading:
            if self._read_s >= since_s:
                return
            clock = asyncio.get_running_loop().time
            await asyncio.sleep(max(0.0, self._read_s + MISS_S - clock()))
            self._read_s = clock()
            try:
                async with asyncio.timeout(ANSWER_S):
                    if not self._upgraded:
                        await upgrade(self._engine)
                        self._upgraded = True
                    self._keys = await read_keys(self._engine)
                self._away = False
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                self._away = True
                log.warning("API keys not read", error=str(error).partition("\n")[0] or repr(error))


def _refused(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
