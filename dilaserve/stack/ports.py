"""TCP ports of this machine."""

import errno
import socket

from shared.errors import BadInput

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def client_url(host: str, port: int) -> str:
    """Where this machine reaches what listens on `host`, an address or a name."""
    reached = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104  (any address: so this one)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def check_free(host: str, port: int, option: str = "--port") -> None:
    """Raises: BadInput if the address cannot be listened on."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(address[0]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gateway does
            probe.bind(address[4])
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = f"the port is taken; choose another with {option}" if taken else error.strerror or str(error)
        raise BadInput(f"cannot listen on {host}:{port}: {reason}") from None
