"""TCP ports on this machine."""

import errno
import socket
from contextlib import ExitStack

from shared.errors import BadInput
from shared.urls import url_host

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Different free ports of the loopback address."""
    with ExitStack() as bound:
        probes = [bound.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def client_url(host: str, port: int, *, tls: bool = False) -> str:
    """The URL at which this machine reaches a server that listens on `host`."""
    scheme = "https" if tls else "http"
    reached = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104  (the wildcard address)
    return f"{scheme}://{url_host(reached)}:{port}"


def check_free(host: str, port: int, option: str = "--port") -> None:
    """Raises: BadInput if the address is not available."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(address[0]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like the gateway
            probe.bind(address[4])
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = f"the port is taken; choose another with {option}" if taken else error.strerror or str(error)
        raise BadInput(f"cannot listen on {url_host(host)}:{port}: {reason}") from None
