"""Failures of Postgres, as the project's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from shared.errors import BadInput, RetryLater

DATABASE_ERRORS = (SQLAlchemyError, OSError)  # TimeoutError is an OSError
BAD_VALUES = ("22", "23")  # classes of SQLSTATE: data exception, integrity violation


@contextmanager
def database_errors() -> Iterator[None]:
    """Raise RetryLater if Postgres fails or does not answer within the block."""
    try:
        yield
    except DATABASE_ERRORS as error:
        raise RetryLater(f"Postgres failed: {_reason(error)}") from error


@contextmanager
def refused_rows() -> Iterator[None]:
    """Raise BadInput if Postgres refuses a value of the rows that the block writes: the same rows fail again."""
    try:
        yield
    except DBAPIError as error:
        if str(getattr(error.orig, "sqlstate", "")).startswith(BAD_VALUES):
            raise BadInput(f"Postgres refuses the row: {_reason(error)}") from error
        raise


def _reason(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(str(cause).split()) or type(cause).__name__
