"""TLS to Postgres, by the parameters of the database URL that libpq has too."""

import ssl
from collections.abc import Mapping, Sequence

from shared.errors import BadInput

PARAMETERS = ("sslmode", "sslrootcert")
VERIFIED = ("verify-ca", "verify-full")
MODES = ("disable", "allow", "prefer", "require", *VERIFIED)


def read_tls(query: Mapping[str, str | Sequence[str]]) -> ssl.SSLContext | str | None:
    """The argument `ssl` of `asyncpg.connect`, from a URL's parameters; None: the driver's default.

    `verify-ca` checks the server's certificate against the certificates in the file `sslrootcert`, by default against
    the system's; `verify-full` checks the host name as well. Raises: BadInput.
    """
    mode, authorities = (query.get(name) for name in PARAMETERS)
    if mode is None and authorities is None:
        return None
    if mode is not None and mode not in MODES:
        raise BadInput(f"sslmode={mode} in the database URL: accepted: {', '.join(MODES)}")
    if mode not in VERIFIED:
        if authorities is not None:
            raise BadInput(f"sslrootcert in the database URL needs sslmode={' or sslmode='.join(VERIFIED)}")
        return str(mode)
    try:
        context = ssl.create_default_context(cafile=None if authorities is None else str(authorities))
    except OSError as error:  # also if the file has no certificate
        raise BadInput(f"sslrootcert={authorities} in the database URL: no readable certificates ({error})") from None
    context.check_hostname = mode == "verify-full"
    return context
