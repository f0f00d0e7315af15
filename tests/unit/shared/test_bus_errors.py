"""Errors of the bus become the project's own."""

import pytest
from nats.js.errors import APIError, BucketNotFoundError, KeyNotFoundError

from shared.bus.errors import NOT_STORED, bus_errors
from shared.errors import NotCreated, RetryLater, StorageFull


def test_an_error_without_a_code_asks_for_a_retry() -> None:
    with pytest.raises(RetryLater, match="cannot take the lease"), bus_errors("take the lease"):
        raise KeyNotFoundError


def test_a_bucket_that_does_not_exist_may_be_created_later() -> None:
    with pytest.raises(NotCreated, match="cannot open the bucket"), bus_errors("open the bucket"):
        raise BucketNotFoundError


@pytest.mark.parametrize("unit", ["messages", "bytes"])
def test_a_stream_at_a_limit_is_full(unit: str) -> None:
    error = APIError(code=503, err_code=NOT_STORED, description=f"maximum {unit} exceeded")
    with pytest.raises(StorageFull, match=f"cannot store: the bus stores as many {unit} there"), bus_errors("store"):
        raise error
