"""The listening sockets of a gateway, and their TLS."""

import socket
import ssl

from services.gateway.settings import GatewaySettings
from shared.errors import BadInput, DilaserveError
from shared.urls import url_host

OPTIONS = "--tls-certificate and --tls-key, or DILASERVE_TLS_CERTIFICATE and DILASERVE_TLS_KEY"


def listen(host: str, port: int) -> socket.socket:
    """Raises: DilaserveError if the port is taken or the host is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]  # Python adds the address
        raise DilaserveError(f"cannot listen on {url_host(host)}:{port}: {reason}") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it: no 40 ms waits
    return listener


def listeners(settings: GatewaySettings) -> list[socket.socket]:
    """The socket of the API, and with a metrics port one of this gateway alone. Raises: as `listen`; BadInput."""
    found = [listen(settings.host, settings.port) if settings.listener_fd is None else _inherited(settings.listener_fd)]
    if settings.metrics_port:
        found.append(listen(settings.metrics_host, settings.metrics_port))
    return found


def _inherited(descriptor: int) -> socket.socket:
    try:
        return socket.socket(fileno=descriptor)
    except OSError as error:
        raise BadInput(f"DILASERVE_LISTENER_FD={descriptor}: {error.strerror}; accepted: a listening socket") from None


def server_tls(certificate: str, key: str) -> ssl.SSLContext | None:
    """The context of a server; None: both are empty, for plain HTTP. Raises: BadInput if they cannot be used."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise BadInput(f"a certificate and its key must be set together: {OPTIONS}", "tls_certificate")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password="")  # None: a question on the terminal
    except OSError as error:  # SSLError is one, too
        files = f"DILASERVE_TLS_CERTIFICATE={certificate!r}, DILASERVE_TLS_KEY={key!r}"
        accepted = "accepted: a PEM certificate and its key without a password"
        raise BadInput(f"{files}: {accepted} ({error.strerror or error})", "tls_certificate") from None
    return context
