"""Failures of Postgres, as the project's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from shared.errors import BadInput, RetryLater

BAD_VALUES = ("22", "23")  # classes of SQLSTATE: data exception, integrity violation


@contextmanager
def database_errors() -> Iterator[None]:
    """Raise BadInput if Postgres refuses a value within the block, RetryLater if it fails or does not answer."""
    try:
        yield
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        if str(getattr(cause, "sqlstate", "")).startswith(BAD_VALUES):
            raise BadInput(f"Postgres refuses the row: {reason}") from error
        raise RetryLater(f"Postgres is unavailable: {reason}") from error
