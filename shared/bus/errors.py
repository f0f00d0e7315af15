"""Maps errors of the bus to RetryLater."""

from collections.abc import Iterator
from contextlib import contextmanager

import nats.errors

from shared.errors import RetryLater

BUS_ERRORS = (nats.errors.Error, TimeoutError)  # nats.errors.Error includes JetStream's errors


@contextmanager
def bus_errors(action: str) -> Iterator[None]:
    """Turn a bus error or timeout within the block into RetryLater, which names `action`."""
    try:
        yield
    except BUS_ERRORS as error:
        raise RetryLater(f"cannot {action}: {error!r}") from error
