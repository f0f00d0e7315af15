"""Wiring: read settings, listen, connect, serve, drain."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog
import uvicorn
import uvloop

from services.gateway.admission.admission import AdmissionController
from services.gateway.admission.slo_admission import SloAdmission
from services.gateway.api.idempotency import IdempotencyKeys
from services.gateway.app import build_app
from services.gateway.app_context import AppContext
from services.gateway.batches.batch_runner import BatchRunner
from services.gateway.batches.batch_store import BatchStore
from services.gateway.batches.file_store import FileStore
from services.gateway.bus_connection import BusConnection
from services.gateway.console.cluster_monitor import ClusterMonitor
from services.gateway.inflight import InFlightRequests
from services.gateway.metrics import GatewayMetrics
from services.gateway.readiness import Readiness
from services.gateway.settings import GatewaySettings
from shared.bus.instance_watch import InstanceWatch
from shared.errors import BadInput
from shared.gc_tuning import freeze_startup_objects
from shared.logs import configure_logs
from shared.model_files import default_model_name, find_model
from shared.settings import read_settings
from shared.tasks import cancel
from shared.telemetry import telemetry
from shared.text import TextModel

if TYPE_CHECKING:
    from services.gateway.admission.api_keys import ApiKeyCache

log = structlog.get_logger(__name__)


def main() -> int:
    """Run the gateway until SIGTERM. Returns: the exit status."""
    try:
        settings = read_settings(GatewaySettings, os.environ)
        configure_logs("gateway", level=settings.log_level, form=settings.log_format)
        allow_connections()
        listener = listen(settings.host, settings.port)
        open_keys(settings)  # or BadInput
        directory = find_model(settings.model, weights=False)
        text = TextModel(directory, settings.model_name or default_model_name(settings.model))
    except BadInput as error:
        sys.stderr.write(f"gateway: {error.message}\n")
        return 2
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]  # Python adds the address
        sys.stderr.write(f"gateway: cannot listen on {settings.host}:{settings.port}: {reason}\n")
        return 1
    with telemetry("gateway", settings.otlp_endpoint):
        uvloop.run(serve_until_signal(settings, text, listener))
    return 0


def allow_connections() -> None:
    """Have as many as the system lets this process have: it begins with 1,024 on most, fewer than it holds requests."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # where the system has a lower limit of another kind
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def open_keys(settings: GatewaySettings) -> "ApiKeyCache | None":
    """The keys that clients are asked for, if they are. Raises: BadInput if the database's URL is none."""
    if not settings.auth:
        return None
    from services.gateway.admission.api_keys import ApiKeyCache  # noqa: PLC0415  (with it come the database's packages, slow to import)

    return ApiKeyCache(settings.database_url)


def listen(host: str, port: int) -> socket.socket:
    """Raises: OSError if the port is taken or the host is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it: no 40 ms waits
    return listener


async def serve_until_signal(settings: GatewaySettings, text: TextModel, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    freeze_startup_objects()
    await serve(settings, text, listener, stop)


async def serve(settings: GatewaySettings, text: TextModel, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop`; then refuse new requests, let open ones end, and return."""
    link = BusConnection()
    instances = InstanceWatch(accept=lambda instance: instance.model.name == text.card.name)
    readiness = Readiness(link, instances)
    calls = InFlightRequests(link, text.card, settings.request_timeout_s)
    watch = ClusterMonitor(settings.cell, text.card.name, instances, readiness)
    keys = open_keys(settings)
    forecast = SloAdmission(settings.default_slo_s) if settings.shed else None
    gate = AdmissionController(keys, calls, settings.max_active_requests, forecast)
    files, batches = FileStore(link), BatchStore(link)
    parts = AppContext(
        text=text,
        link=link,
        gate=gate,
        claims=IdempotencyKeys(link),
        files=files,
        batches=batches,
        readiness=readiness,
        calls=calls,
        metrics=GatewayMetrics(),
        watch=watch,
        started_s=time.time(),
    )
    runner = BatchRunner(text, calls, files, batches)
    server = Server(build_app(parts))
    async with keys.kept() if keys else contextlib.nullcontext(), asyncio.TaskGroup() as tasks:
        connecting = tasks.create_task(connect(settings, link, instances, readiness, watch, forecast, runner))
        watching = tasks.create_task(watch.run())
        serving = tasks.create_task(server.serve([listener]))
        log.info("listening", url="http://{}:{}".format(*listener.getsockname()[:2]), model=text.card.name)
        await stop.wait()
        log.info("draining", requests=calls.active)
        readiness.draining = True
        await cancel([connecting])  # batches go back to the bus
        await calls.idle(settings.drain_timeout_s)
        watch.close()
        server.should_exit = True
        watching.cancel()
        await serving
    await link.close()


async def connect(
    settings: GatewaySettings,
    link: BusConnection,
    instances: InstanceWatch,
    readiness: Readiness,
    watch: ClusterMonitor,
    forecast: SloAdmission | None,
    runner: BatchRunner,
) -> None:
    """Connect, listen, and run batches until cancelled."""
    bus = await link.connect(settings.nats_url, settings.cell, settings.alive_file)
    await instances.start(bus)
    await readiness.listen(bus)
    if forecast is not None:
        await forecast.listen(bus)
    await watch.listen(bus)
    await runner.run(bus)


class Server(uvicorn.Server):
    """uvicorn, with signals left to `serve`, which drains first."""

    def __init__(self, app: object) -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=2)  # type: ignore[arg-type]
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


if __name__ == "__main__":
    sys.exit(main())
