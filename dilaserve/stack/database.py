"""Runs a command's operation in the database."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from shared.database.errors import DATABASE_ERRORS
from shared.database.schema import open_database, upgrade
from shared.errors import DilaserveError

T = TypeVar("T")


def in_database(url: str, operation: Callable[[AsyncEngine], Awaitable[T]]) -> T:
    """Run `operation` in the migrated database. Raises: BadInput for a wrong URL; DilaserveError without an answer."""

    async def run() -> T:
        engine = open_database(url)
        try:
            await upgrade(engine)
            return await operation(engine)
        except DATABASE_ERRORS as error:
            raise DilaserveError(f"the database does not answer: {str(error).partition(chr(10))[0]}") from error
        finally:
            await engine.dispose()

    return asyncio.run(run())
