"""TLS of the REST API."""

import ssl

from shared.errors import BadInput

OPTIONS = "--tls-certificate and --tls-key, or DILASERVE_TLS_CERTIFICATE and DILASERVE_TLS_KEY"


def server_tls(certificate: str, key: str) -> ssl.SSLContext | None:
    """The context of a server with these PEM files; None, for plain HTTP, if both are empty.

    Raises: BadInput if only one is given, or they cannot be used.
    """
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
