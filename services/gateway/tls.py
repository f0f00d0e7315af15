"""TLS of the REST API."""

import ssl

from services.gateway.settings import GatewaySettings
from shared.errors import BadInput


def server_tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    """The server's certificate and key; None: plain HTTP. Raises: BadInput naming the setting at fault."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise BadInput("DILASERVE_TLS_CERTIFICATE and DILASERVE_TLS_KEY must be set together", "tls_certificate")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:  # SSLError is one, too
        files = f"DILASERVE_TLS_CERTIFICATE={certificate!r}, DILASERVE_TLS_KEY={key!r}"
        accepted = "accepted: a PEM certificate and its key without a password"
        raise BadInput(f"{files}: {accepted} ({error.strerror or error})", "tls_certificate") from None
    return context


def _no_password() -> str:
    """In place of a question on the terminal."""
    return ""
