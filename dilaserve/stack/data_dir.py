"""The data directory of an embedded stack: its lock and the stack's addresses."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from shared.bus.users import BusUser
from shared.errors import BadInput
from shared.settings import check_nats_url

STATUS_NATS_URL = "DILASERVE_STATUS_NATS_URL"  # set in the gateway's container: the bus, with the user `status`
MIN_FREE_BYTES = 64 << 20  # on the disk: a new Postgres writes 40 MB
CONTAINER_URL = "http://127.0.0.1:8000"  # the gateway, in its container


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a running stack; `stack.json` of its data directory."""

    url: str
    nats_url: str  # for producers of requests
    nats_urls: dict[str, str]  # for each user of the bus, named producers included
    database_url: str
    nats_ca: str = ""  # as the setting of the same name
    tls_certificate: str = ""  # file of the gateway's certificate; empty: plain HTTP
    model: str = ""  # directory of the checkpoint
    auth: bool = True  # whether clients need keys


@contextmanager
def lock_directory(data_dir: Path) -> Iterator[None]:
    """Lock the directory, created if missing. Raises: BadInput if it is in use, cannot be written or its disk is full.

    The kernel releases the lock when the process ends.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(data_dir).free) < MIN_FREE_BYTES:
            left, least = free >> 20, MIN_FREE_BYTES >> 20
            raise BadInput(f"--data-dir {data_dir}: its disk has {left} MiB left; at least {least} MiB are needed")
        lock = (data_dir / "lock").open("a+")
    except OSError as error:
        raise BadInput(f"--data-dir {data_dir} cannot be used: {error.strerror or error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise BadInput(
                f"--data-dir {data_dir} is in use by another `dilaserve up` (process {lock.read().strip()}); "
                "stop it or choose another directory"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def write_addresses(data_dir: Path, addresses: Addresses) -> None:
    """Only the owner can read the file: the addresses may hold passwords."""
    remove_addresses(data_dir)  # a file of an earlier version keeps its permissions
    descriptor = os.open(data_dir / "stack.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(addresses))


def read_addresses(data_dir: Path) -> Addresses:
    """Raises: BadInput if no stack runs in the directory."""
    path = data_dir / "stack.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Addresses)
    except (OSError, msgspec.MsgspecError):
        raise BadInput(f"no stack in {data_dir} (no readable {path}); start one with `dilaserve up`") from None


def find_addresses(data_dir: Path, environ: Mapping[str, str]) -> Addresses:
    """The addresses for `dilaserve status` and `dilaserve doctor`: of the stack in the directory or, in the gateway's
    container, of its services. Raises: BadInput if there is neither."""
    try:
        return read_addresses(data_dir)
    except BadInput:
        if STATUS_NATS_URL not in environ:
            raise
    nats_url = environ[STATUS_NATS_URL]
    check_nats_url(nats_url, STATUS_NATS_URL)
    return Addresses(
        url=CONTAINER_URL,
        nats_url=nats_url,
        nats_urls={BusUser.STATUS: nats_url},
        database_url=environ.get("DILASERVE_DATABASE_URL", ""),
        nats_ca=environ.get("DILASERVE_NATS_CA", ""),
    )


def remove_addresses(data_dir: Path) -> None:
    (data_dir / "stack.json").unlink(missing_ok=True)
