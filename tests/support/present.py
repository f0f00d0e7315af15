"""Values that may be absent in general, and are there in a test."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value. Raises: AssertionError if there is none."""
    assert value is not None
    return value
