"""What an API key allows, and the form in which its secret is kept."""

import hashlib
from dataclasses import dataclass
from datetime import datetime

MAX_PRIORITY = 100  # the highest there is


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What a key allows. None: no limit."""

    key_id: str
    name: str
    requests_per_minute: int | None = None
    concurrency: int | None = None
    max_priority: int = MAX_PRIORITY
    created_at: datetime | None = None
    revoked_at: datetime | None = None


ANONYMOUS = ApiKey(key_id="", name="anyone")  # where no key is asked for


def hash_secret(secret: str) -> str:
    """A secret has 256 random bits, so its plain SHA-256 cannot be turned back by guessing."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
