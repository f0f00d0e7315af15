"""API keys: their limits, and the stored form of their secrets."""

import hashlib
from dataclasses import dataclass
from datetime import datetime

MAX_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key and its limits. None: no limit."""

    key_id: str
    name: str
    requests_per_minute: int | None = None
    concurrency: int | None = None
    max_priority: int = MAX_PRIORITY
    created_at: datetime | None = None
    revoked_at: datetime | None = None
    operator: bool = False  # sees the requests of all keys
    stores_responses: bool = False  # keeps the conversations of its responses, so that `previous_response_id` works

    @property
    def usual_priority(self) -> int:
        """That of its requests without a priority."""
        return min(0, self.max_priority)

    def may_see(self, owner: str) -> bool:
        """Whether it may read a request with the key `owner`."""
        return self.operator or self.key_id == owner


ANONYMOUS = ApiKey(key_id="", name="anyone", operator=True)  # every client of a gateway without `auth`


def hash_secret(secret: str) -> str:
    """The SHA-256 of a secret. A secret has 256 random bits, so that its hash needs no salt."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
