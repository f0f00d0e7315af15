"""Settings of the gateway, and the cells that it serves: its own, and those of `more_models`."""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from shared.errors import BadInput
from shared.model_files import default_model_name
from shared.settings import OptionalPort, Positive, Seconds, ServiceSettings, check_nats_url

HostName = Annotated[str, msgspec.Meta(pattern=r"^(\*|[A-Za-z0-9._-]+)$")]
WebOrigin = Annotated[str, msgspec.Meta(pattern=r"^(\*|https?://[^/\s]+)$")]
BodyMemory = Annotated[int, msgspec.Meta(ge=8 << 20)]  # two of the largest bodies
TraceUrl = Annotated[str, msgspec.Meta(pattern=r"^(https?://[^\s{}]*\{trace_id\}[^\s{}]*)?$")]


class GatewaySettings(ServiceSettings, frozen=True, kw_only=True):
    model: str  # model directory or hub id; the gateway reads its tokenizer and configuration
    model_name: str = ""  # model name in the API; empty: the directory's name
    more_models: tuple[str, ...] = ()  # further cells: NAME=MODEL@CELL, or NAME=MODEL@URL/CELL with a NATS URL
    host: str = "127.0.0.1"  # address of the REST API
    port: OptionalPort = 8000  # port of the REST API; 0: any free port
    listener_fd: Annotated[int, msgspec.Meta(ge=0)] | None = None  # descriptor of a socket that several gateways share
    tls_certificate: str = ""  # PEM file of the REST API's certificate, with its chain; empty: plain HTTP
    tls_key: str = ""  # PEM file of the certificate's key; required with `tls_certificate`
    allowed_hosts: tuple[HostName, ...] = ()  # names that clients may use for the gateway, or `*`; empty: by `host`
    allowed_origins: tuple[WebOrigin, ...] = ()  # web sites whose pages may call the API (CORS), or `*`
    auth: bool = False  # require an API key from clients
    database_url: str = ""  # Postgres with the API keys (postgresql://...); required with `auth`
    store_responses: bool = False  # store all responses for a day; with `auth`, only those of keys that ask for it
    max_active_requests: Positive = 4096  # requests in flight; further requests are refused with 429
    service_tiers: tuple[str, ...] = ()  # SLO and priority of each `service_tier`: NAME=SLO_MS or NAME=SLO_MS:PRIORITY
    reasoning_efforts: tuple[str, ...] = ()  # quality floor of each `reasoning_effort`: NAME=THRESHOLD
    max_files_per_key: Positive = 1000  # stored files of an API key, results of batches included
    max_file_bytes_per_key: Positive = 1 << 30  # bytes of the stored files of an API key, results of batches included
    max_body_memory_bytes: BodyMemory = 128 << 20  # bytes of the bodies being read; beyond, the largest gets a 503
    access_log: bool = False  # log a line for each request to the REST API, with its path and status
    control_tokens_in_messages: bool = False  # read control tokens in messages and tools, which can then forge turns
    trace_url: TraceUrl = ""  # page of a trace, to which the console links: http://127.0.0.1:16686/trace/{trace_id}
    bus_store_dir: str = ""  # directory of NATS's store, if this machine has it: `/ready` watches its free space
    keep_alive_s: Positive = 75  # seconds that a connection stays open between two requests; a proxy's limit is shorter
    request_timeout_s: Seconds = 600.0  # seconds after which a request without an outcome is cancelled
    drain_timeout_s: Seconds = 30.0  # seconds that open requests have to finish after SIGTERM


VARIABLE = "DILASERVE_MORE_MODELS"
ACCEPTED = "NAME=MODEL@CELL, or NAME=MODEL@URL/CELL for a cell on another NATS server"
ENTRY = re.compile(r"(?P<name>[^=\s]+)=(?P<model>[^@]+)@((?P<url>\S+)/)?(?P<cell>[a-z0-9-]{1,32})")


def served_cells(settings: GatewaySettings) -> list[GatewaySettings]:
    """The settings of each cell, the gateway's own first. Raises: BadInput for an invalid entry or a conflict."""
    own = replace(settings, model_name=settings.model_name or default_model_name(settings.model), more_models=())
    cells = [own, *(_read(own, number, entry) for number, entry in enumerate(settings.more_models, 1))]
    for i, cell in enumerate(cells):
        for other in cells[:i]:
            if (other.nats_url, other.cell) == (cell.nats_url, cell.cell):
                raise BadInput(f"{VARIABLE}: the cell {cell.cell} is there twice; it serves one model", VARIABLE)
            if other.model_name != cell.model_name:
                continue
            if other.model != cell.model:
                message = f"the name {cell.model_name} is there with two models, {other.model} and {cell.model}"
                raise BadInput(f"{VARIABLE}: {message}", VARIABLE)
            if other.cell == cell.cell:
                message = f"two cells of the model {cell.model_name} have the name {cell.cell}; rename one of them"
                raise BadInput(f"{VARIABLE}: {message}", VARIABLE)
    return cells


def by_model(cells: Sequence[GatewaySettings]) -> list[list[GatewaySettings]]:
    """The cells of each model, in the order of their first cells."""
    grouped: dict[str, list[GatewaySettings]] = {}
    for cell in cells:
        grouped.setdefault(cell.model_name, []).append(cell)
    return list(grouped.values())


def _read(own: GatewaySettings, number: int, entry: str) -> GatewaySettings:
    """Messages have the entry's number, as its text may have a password."""
    if (found := ENTRY.fullmatch(entry)) is None:
        raise BadInput(f"{VARIABLE}: entry {number} is not of the form {ACCEPTED}", VARIABLE)
    url = found["url"] or own.nats_url
    check_nats_url(url, f"{VARIABLE}: entry {number}")
    return replace(
        own,
        model=found["model"],
        model_name=found["name"],
        nats_url=url,
        cell=found["cell"],
        alive_file="",  # the connection to the own cell touches it
        bus_store_dir=own.bus_store_dir if url == own.nats_url else "",
    )
