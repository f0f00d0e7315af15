"""Settings: read once from a mapping (the environment) into a frozen type.

A field `nats_url` of a settings type is the variable `DILASERVE_NATS_URL`. A wrong value stops the start
with one line that names the variable, the value and what is accepted.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from shared.errors import BadInput

PREFIX = "DILASERVE_"

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
NatsUrl = Annotated[str, msgspec.Meta(pattern=r"^((nats|tls)://)?(\S+@)?([\w.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?/?$")]
CellName = Annotated[str, msgspec.Meta(pattern="^[a-z0-9-]{1,32}$")]


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every service needs to join the cluster."""

    nats_url: NatsUrl = "nats://127.0.0.1:4222"  # the bus
    cell: CellName = "cell0"  # the cell it belongs to: one scheduler and the instances it drives
    alive_file: str = ""  # touched every few seconds once the bus is joined, for health checks; empty: none
    otlp_endpoint: str = ""  # base URL of an OpenTelemetry collector (OTLP over HTTP); empty: no traces
    metrics_host: str = "127.0.0.1"  # where Prometheus metrics are served
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0  # 0: nowhere; the gateway has its own at its `port`
    log_level: Annotated[str, msgspec.Meta(pattern="^(debug|info|warning|error)$")] = "info"
    log_format: Annotated[str, msgspec.Meta(pattern="^(console|json)$")] = "console"  # of the lines on standard error


S = TypeVar("S", bound=ServiceSettings)


def read_settings(kind: type[S], environ: Mapping[str, str]) -> S:
    """Build `kind` from the `DILASERVE_*` entries of `environ`; others are ignored, a list is comma-separated.

    Raises: BadInput naming the variable, its value and what is accepted.
    """
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        variable = PREFIX + field.name.upper()
        if variable not in environ:
            if field.required:
                raise BadInput(f"{variable} is not set", field=variable)
            continue
        raw: Any = environ[variable]
        if _is_tuple(field.type):
            raw = [part.strip() for part in raw.split(",") if part.strip()]
        try:
            values[field.name] = msgspec.convert(raw, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise BadInput(f"{variable}={environ[variable]!r}: {error}", field=variable) from None
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise BadInput(f"settings of {kind.__module__}: {error}") from None


def to_environ(settings: Mapping[str, object]) -> dict[str, str]:
    """The inverse, for a process that starts another: field names and values to `DILASERVE_*` strings."""
    return {PREFIX + name.upper(): _as_text(value) for name, value in settings.items() if value is not None}


def _is_tuple(kind: Any) -> bool:
    return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.VarTupleType)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(str(part) for part in value)
    return str(value)
