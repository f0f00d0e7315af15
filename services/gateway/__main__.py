"""Entry point: listens, connects, serves, drains."""

import asyncio
import contextlib
import resource
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog
import uvicorn
import uvloop

from services.gateway.admission.admission import AdmissionController
from services.gateway.admission.slo_admission import SloAdmission
from services.gateway.api.idempotency import IdempotencyKeys
from services.gateway.api.serving_fields import ServingTables
from services.gateway.api.web_guard import SECURITY_HEADERS, WebGuard
from services.gateway.app import build_app
from services.gateway.app_context import AppContext
from services.gateway.batches.batch_consumer import BatchConsumer
from services.gateway.batches.batch_runner import BatchRunner
from services.gateway.batches.batch_store import BatchStore
from services.gateway.batches.file_store import FileStore
from services.gateway.bus_connection import BusConnection
from services.gateway.console.cluster_monitor import ClusterMonitor
from services.gateway.http_protocol import BoundedHttpProtocol
from services.gateway.inflight import InFlightRequests
from services.gateway.readiness import Readiness
from services.gateway.settings import GatewaySettings
from services.gateway.tls import server_tls
from shared.errors import DilaserveError
from shared.model_files import default_model_name, find_model
from shared.service import Service, freeze_startup_objects, run_service, stop_on_signal
from shared.tasks import cancel
from shared.text import TextModel

if TYPE_CHECKING:
    from services.gateway.admission.api_keys import ApiKeyCache

log = structlog.get_logger(__name__)


def main() -> int:
    """Run the gateway until SIGTERM. Returns: the exit status."""
    return run_service("gateway", GatewaySettings, prepare, uvloop.run)


def prepare(settings: GatewaySettings) -> Service:
    """Listen and load the tokenizer. Raises: BadInput; DilaserveError if the address is not available."""
    raise_connection_limit()
    # The results of these and of `open_api_keys` are not used: they report wrong settings before the start.
    server_tls(settings.tls_certificate, settings.tls_key)
    ServingTables.read(settings.service_tiers, settings.reasoning_efforts)
    listener = listen(settings.host, settings.port)
    open_api_keys(settings)
    directory = find_model(settings.model, weights=False)
    text = TextModel(directory, settings.model_name or default_model_name(settings.model))
    return serve_until_signal(settings, text, listener)


def raise_connection_limit() -> None:
    """Raise the limit on open files to the system's maximum; the usual 1,024 is less than the requests it serves."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # another limit of the system is lower
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def open_api_keys(settings: GatewaySettings) -> "ApiKeyCache | None":
    """None without `auth`. Raises: BadInput if the database URL is invalid."""
    if not settings.auth:
        return None
    from services.gateway.admission.api_keys import ApiKeyCache  # noqa: PLC0415  (imports the database packages: slow)

    return ApiKeyCache(settings.database_url)


def listen(host: str, port: int) -> socket.socket:
    """Raises: DilaserveError if the port is taken or the host is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]  # Python adds the address
        raise DilaserveError(f"cannot listen on {host}:{port}: {reason}") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it: no 40 ms waits
    return listener


async def serve_until_signal(settings: GatewaySettings, text: TextModel, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = stop_on_signal()
    freeze_startup_objects()
    await serve(settings, text, listener, stop)


async def serve(settings: GatewaySettings, text: TextModel, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then refuse new requests, let open ones end, and return."""
    api_keys = open_api_keys(settings)
    context = build_context(settings, text, api_keys)
    tls = server_tls(settings.tls_certificate, settings.tls_key)
    config = uvicorn.Config(
        WebGuard(build_app(context), settings),
        http=BoundedHttpProtocol,
        headers=SECURITY_HEADERS,
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )
    server = Server(config)
    async with api_keys.refreshing() if api_keys else contextlib.nullcontext(), asyncio.TaskGroup() as tasks:
        connecting = tasks.create_task(connect(settings, context))
        monitoring = tasks.create_task(context.monitor.run())
        serving = tasks.create_task(server.serve([listener]))
        scheme, (host, port) = "http" if tls is None else "https", listener.getsockname()[:2]
        log.info("listening", url=f"{scheme}://{host}:{port}", model=text.card.name)
        await stop.wait()
        log.info("draining", requests=context.inflight.count)
        context.readiness.draining = True
        await cancel([connecting])  # gives batches back to the bus
        await context.inflight.drain(settings.drain_timeout_s)
        context.monitor.close()
        server.should_exit = True
        monitoring.cancel()
        await serving
    await context.connection.close()


def build_context(settings: GatewaySettings, text: TextModel, api_keys: "ApiKeyCache | None") -> AppContext:
    connection = BusConnection()
    readiness = Readiness(
        connection, text.card.name, max_queue_s=settings.request_timeout_s / 2, store_dir=settings.bus_store_dir
    )
    monitor = ClusterMonitor(settings.cell, text.card.name, readiness)
    inflight = InFlightRequests(connection, text.card, settings.request_timeout_s)
    slo_admission = SloAdmission(settings.default_slo_s) if settings.shed else None
    return AppContext(
        text=text,
        connection=connection,
        admission=AdmissionController(api_keys, inflight, monitor, settings.max_active_requests, slo_admission),
        idempotency=IdempotencyKeys(connection),
        files=FileStore(connection, settings.max_files_per_key, settings.max_file_bytes_per_key),
        batches=BatchStore(connection),
        readiness=readiness,
        inflight=inflight,
        monitor=monitor,
        tables=ServingTables.read(settings.service_tiers, settings.reasoning_efforts),
    )


async def connect(settings: GatewaySettings, context: AppContext) -> None:
    """Connect to the bus, subscribe, then watch its storage and run batches until cancelled."""
    bus = await context.connection.connect(settings)
    await context.monitor.subscribe(bus)  # before the gateway is ready, so that it counts every request
    await context.readiness.subscribe(bus)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(context.connection.clock.run())
        tasks.create_task(context.readiness.probe.run(bus))
        await context.monitor.read_recent(bus)
        await BatchConsumer(BatchRunner(context)).run(bus)


class Server(uvicorn.Server):
    """uvicorn without signal handlers: `serve` drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


if __name__ == "__main__":
    sys.exit(main())
