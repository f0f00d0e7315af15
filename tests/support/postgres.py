"""A real Postgres server for tests: its own process, a Unix socket, a temporary cluster."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from dilaserve.stack.postgres import database_url, prepare_postgres, socket_directory
from shared.database.schema import database_answers, open_database, upgrade
from tests.support.stack import new_data_dir
from tests.support.waiting import until

START_S = 30.0  # time limit for the server to answer


class PostgresServer:
    """A server that a test can stop and restart on the same cluster."""

    def __init__(self, directory: Path) -> None:
        self._program = prepare_postgres(directory)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = database_url(directory)
        self.socket = socket_directory(directory) / ".s.PGSQL.5432"

    async def start(self) -> None:
        """Start, and return when the server answers. Raises: TimeoutError if it does not."""
        self._process = self._spawn()
        await until(partial(database_answers, self.url), START_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        program = self._program
        with (program.log or Path("/dev/null")).open("ab") as log:
            return subprocess.Popen(program.command, stdout=log, stderr=log, user=program.user)

    def stop(self) -> None:
        """Send the stop signal, which closes all connections at once."""
        if self._process is None:
            return
        self._process.send_signal(self._program.stop_signal)
        self._process.wait(timeout=START_S)
        self._process = None


async def make_empty(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await connection.execute(text("DROP SCHEMA public CASCADE"))
        await connection.execute(text("CREATE SCHEMA public"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for the run. A test that stops it starts it again."""
    with new_data_dir() as data_dir:
        server = PostgresServer(data_dir / "postgres")
        asyncio.run(server.start())
        yield server
        server.stop()


@pytest.fixture
async def database(postgres_server: PostgresServer) -> AsyncIterator[AsyncEngine]:
    """An engine for the server's database, which is empty."""
    engine = open_database(postgres_server.url)
    await make_empty(engine)
    yield engine
    await engine.dispose()


@pytest.fixture(scope="module")
def postgres(postgres_server: PostgresServer) -> PostgresServer:
    """The server with empty tables, for the tests of a module."""

    async def prepare() -> None:
        engine = open_database(postgres_server.url)
        await make_empty(engine)
        await upgrade(engine)
        await engine.dispose()

    asyncio.run(prepare())
    return postgres_server
