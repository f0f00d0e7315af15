"""Maps errors of the bus to the project's."""

from collections.abc import Iterator
from contextlib import contextmanager

import nats.errors
from nats.js.errors import APIError, NotFoundError

from shared.errors import NotCreated, RetryLater, StorageFull

BUS_ERRORS = (nats.errors.Error, TimeoutError)  # nats.errors.Error includes JetStream's errors

NOT_STORED = 10077  # the server's error code for a stream at its bound, and for other failures to store


@contextmanager
def bus_errors(action: str) -> Iterator[None]:
    """Turn a bus error or timeout within the block into RetryLater, which names `action`; into StorageFull if a
    stream holds as many messages or bytes as it may, into NotCreated if what it uses does not exist."""
    try:
        yield
    except BUS_ERRORS as error:
        raise _as_retry_later(action, error) from error


def _as_retry_later(action: str, error: Exception) -> RetryLater:
    is_not_stored = getattr(error, "err_code", None) == NOT_STORED  # errors of buckets have no code
    description = (error.description or "") if isinstance(error, APIError) and is_not_stored else ""
    if description.startswith("maximum"):
        unit = "bytes" if description.startswith("maximum bytes") else "messages"
        return StorageFull(f"cannot {action}: the bus stores as many {unit} there as it may")
    kind = NotCreated if isinstance(error, NotFoundError) else RetryLater
    return kind(f"cannot {action}: {error!r}")
