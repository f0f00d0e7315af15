"""Settings of the gateway."""

from typing import Annotated

import msgspec

from shared.settings import OptionalPort, Positive, Seconds, ServiceSettings

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
