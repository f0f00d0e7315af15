"""Errors of the bus become the project's own."""

import pytest
from nats.js.errors import APIError, BucketNotFoundError, KeyNotFoundError

from shared.bus.errors import NOT_STORED, bus_errors
from shared.errors import NotCreated, QueueFull, RetryLater


def test_an_error_without_a_code_asks_for_a_retry() -> None:
    with pytest.raises(RetryLater, match="cannot take the lease"), bus_errors("take the lease"):
        raise KeyNotFoundError


def test_a_bucket_that_does_not_exist_may_be_created_later() -> None:
    with pytest.raises(NotCreated, match="cannot open the bucket"), bus_errors("open the bucket"):
        raise BucketNotFoundError


def test_a_stream_at_its_bound_is_a_full_queue() -> None:
    error = APIError(code=503, err_code=NOT_STORED, description="maximum messages exceeded")
    with pytest.raises(QueueFull, match="cannot store"), bus_errors("store"):
        raise error
