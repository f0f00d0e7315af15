"""A real Postgres server for tests: its own process, a Unix socket, a temporary cluster."""

import subprocess
from functools import partial
from pathlib import Path

from dilaserve.stack.postgres import database_url, prepare_postgres
from shared.database.schema import database_answers
from tests.support.waiting import until

START_S = 30.0  # time limit for the server to answer


class PostgresServer:
    """A server that a test can stop and restart on the same cluster."""

    def __init__(self, directory: Path) -> None:
        self._program = prepare_postgres(directory)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = database_url(directory)

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
