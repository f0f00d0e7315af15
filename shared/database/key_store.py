"""API keys in Postgres: created, listed and revoked by the command line, read by the gateway."""

import secrets
from dataclasses import asdict
from datetime import UTC, datetime

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from shared.api_keys import ApiKey, hash_secret
from shared.database.schema import ApiKeyRow
from shared.errors import BadInput

PREFIX = "dls-"


async def create_key(
    engine: AsyncEngine,
    name: str,
    requests_per_minute: int | None = None,
    concurrency: int | None = None,
    max_priority: int = 0,
    *,
    operator: bool = False,
    stores_responses: bool = False,
) -> tuple[ApiKey, str]:
    """Returns: the key and its secret, which is not stored."""
    limits = (requests_per_minute, concurrency, max_priority)
    key_id, created_at = secrets.token_hex(4), datetime.now(UTC)
    key = ApiKey(key_id, name, *limits, created_at=created_at, operator=operator, stores_responses=stores_responses)
    secret = PREFIX + secrets.token_urlsafe(32)
    async with engine.begin() as connection:
        await connection.execute(insert(ApiKeyRow).values(**asdict(key), secret_hash=hash_secret(secret)))
    return key, secret


async def read_keys(engine: AsyncEngine) -> dict[str, ApiKey]:
    """All keys, including revoked ones, by the hash of the secret; the oldest first."""
    columns = [getattr(ApiKeyRow, field) for field in ApiKey.__slots__]
    async with engine.connect() as connection:
        rows = await connection.execute(select(ApiKeyRow.secret_hash, *columns).order_by(ApiKeyRow.created_at))
        return {secret_hash: ApiKey(*fields) for secret_hash, *fields in rows}


async def revoke_key(engine: AsyncEngine, key_id: str) -> None:
    """Revoke a key; revoking it again changes nothing. Raises: BadInput if the key does not exist."""
    change = update(ApiKeyRow).where(ApiKeyRow.key_id == key_id, ApiKeyRow.revoked_at.is_(None))
    async with engine.begin() as connection:
        await connection.execute(change.values(revoked_at=datetime.now(UTC)))
        found = await connection.scalar(select(ApiKeyRow.key_id).where(ApiKeyRow.key_id == key_id))
    if found is None:
        raise BadInput(f"no key {key_id}; `dilaserve keys list` shows the keys")
