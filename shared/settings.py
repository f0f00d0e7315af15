"""Settings: read once from a mapping (the environment) into a frozen type.

The field `nats_url` of a settings type is the variable `DILASERVE_NATS_URL`. An invalid value stops the service with
one line that names the variable, the value and the accepted values.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from shared.errors import BadInput
from shared.urls import without_credentials

PREFIX = "DILASERVE_"

OptionalPort = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
_SERVER = r"([^\s/?#\[\]]+@)?([\w.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?/?"
_NATS_URL = rf"((?P<scheme>nats|tls)://)?{_SERVER}(,(?P=scheme)://{_SERVER})*"
NATS_URLS = (
    "nats://HOST:PORT, or tls://HOST:PORT, with USER:PASSWORD@ before HOST where the server has users, "
    "without / ? # [ ]; for a cluster several of them, with commas between"
)
NatsUrl = Annotated[str, msgspec.Meta(pattern=f"^{_NATS_URL}$", description=NATS_URLS)]
OptionalNatsUrl = Annotated[str, msgspec.Meta(pattern=f"^({_NATS_URL})?$", description=NATS_URLS)]
HttpUrl = Annotated[str, msgspec.Meta(pattern=r"^(https?://([^\s/?#\[\]]+@)?[^\s/?#@]+(/[^\s@]*)?)?$")]
CellName = Annotated[str, msgspec.Meta(pattern="^[a-z0-9-]{1,32}$")]


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that every service has. A field's comment is its description in docs/configuration.md."""

    removed: ClassVar[tuple[str, ...]] = ()  # settings of the release before, which are ignored

    nats_url: NatsUrl = "nats://127.0.0.1:4222"  # URL of each NATS server, with commas between; tls:// requires TLS
    nats_ca: str = ""  # PEM file of the authorities for the NATS server's certificate; empty: the system's
    cell: CellName = "cell0"  # name of the cell: one scheduler and its instances
    alive_file: str = ""  # file touched every 5 s while the service is live, for health checks; empty: none
    otlp_endpoint: HttpUrl = ""  # base URL of an OpenTelemetry collector (OTLP over HTTP); empty: no traces
    metrics_host: str = "127.0.0.1"  # address on which Prometheus metrics are served
    metrics_port: OptionalPort = 0  # port of the metrics, at a gateway of its whole API; 0: none
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # lowest level that is logged
    log_format: Literal["console", "json"] = "console"  # format of log lines: text or JSON


S = TypeVar("S", bound=ServiceSettings)


def read_settings(kind: type[S], environ: Mapping[str, str]) -> S:
    """Build `kind` from the `DILASERVE_*` entries of `environ`; other entries are ignored, a list is comma-separated.
    An empty value of a setting without a default counts as not set.

    Raises: BadInput naming the variable, its value and the accepted values.
    """
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        variable = PREFIX + field.name.upper()
        if variable not in environ:
            if field.required:
                raise BadInput(f"{variable} is not set", field=variable)
            continue
        raw: Any = environ[variable]
        if raw == "" and field.default is None:
            continue
        if isinstance(msgspec.inspect.type_info(field.type), msgspec.inspect.VarTupleType):
            raw = [part.strip() for part in raw.split(",") if part.strip()]
        try:
            values[field.name] = msgspec.convert(raw, field.type, strict=False)
        except msgspec.ValidationError as error:
            if field.type in {NatsUrl, OptionalNatsUrl}:
                raise _invalid_nats_url(variable, environ[variable]) from None
            choices = _choices(msgspec.inspect.type_info(field.type))
            accepted = f"; accepted: {', '.join(choices)}" if choices else ""
            shown = without_credentials(environ[variable])
            raise BadInput(f"{variable}={shown!r}: {error}{accepted}", field=variable) from None
    return kind(**values)


def removed_variables(kind: type[ServiceSettings], environ: Mapping[str, str]) -> list[str]:
    """The variables in `environ` that the release before read, and this one ignores."""
    return [variable for name in kind.removed if (variable := PREFIX + name.upper()) in environ]


def _choices(kind: msgspec.inspect.Type) -> list[str]:
    """The names that a setting of this type accepts; empty if it accepts others."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return [name for part in kind.types for name in _choices(part)]
    return [str(name) for name in getattr(kind, "values", ())]


def check_nats_url(url: str, name: str) -> None:
    """Raises: BadInput with `name`, the URL without its user and password, and the accepted form."""
    if re.fullmatch(_NATS_URL, url) is None:
        raise _invalid_nats_url(name, url)


def check_cell_name(cell: str, name: str) -> None:
    """Raises: BadInput with `name`, the cell and the accepted form."""
    try:
        msgspec.convert(cell, CellName)
    except msgspec.ValidationError as error:
        raise BadInput(f"{name} {cell}: {error}", field=name) from None


def _invalid_nats_url(name: str, url: str) -> BadInput:
    shown = without_credentials(url)
    return BadInput(f"{name}={shown!r}: not the URL of a NATS server; accepted: {NATS_URLS}", field=name)


def to_environ(settings: Mapping[str, object]) -> dict[str, str]:
    """Field names and values as `DILASERVE_*` strings: the environment of a child process. None is left out."""
    return {PREFIX + name.upper(): _as_text(value) for name, value in settings.items() if value is not None}


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return str(value)
