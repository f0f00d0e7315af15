"""Failures of the bus, as the project's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import nats.errors

from shared.errors import RetryLater

BUS_ERRORS = (nats.errors.Error, TimeoutError)  # JetStream's errors are among the first


@contextmanager
def bus_errors(action: str) -> Iterator[None]:
    """Raise RetryLater, which names `action`, where the bus fails or does not answer within the block."""
    try:
        yield
    except BUS_ERRORS as error:
        raise RetryLater(f"cannot {action}: {error!r}") from error
