"""Entry point: listens, connects, serves, drains."""

import asyncio
import contextlib
import ctypes
import logging
import resource
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn
import uvloop

from services.gateway.api.app_context import AppContext
from services.gateway.api.serving_fields import ServingTables
from services.gateway.api.web_guard import SECURITY_HEADERS, WebGuard
from services.gateway.app import build_app
from services.gateway.batches.batch_runner import BatchRunner
from services.gateway.cell_context import CellContext
from services.gateway.http_protocol import BoundedHttpProtocol
from services.gateway.http_server import CHECK_S, Server
from services.gateway.listeners import listeners, server_tls
from services.gateway.served_cells import by_model, served_cells
from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.errors import BadInput, RetryLater
from shared.model_files import find_model
from shared.service import Service, freeze_startup_objects, run_program, run_service, stop_on_signal
from shared.tasks import cancel, during, run_together, run_until_stopped
from shared.text import TextModel
from shared.urls import url_host

if TYPE_CHECKING:
    from services.gateway.admission.api_keys import ApiKeyCache

log = structlog.get_logger(__name__)

MMAP_THRESHOLD_OPTION, MMAP_THRESHOLD = -3, 32_768  # glibc's name for it, and bytes
DRAIN_REPORT_S = 5.0
MAX_START_S = 10.0  # limit of the wait for readiness; then `/ready` states the reasons


def main() -> int:
    """Run the gateway until SIGTERM. Returns: the exit status."""
    return run_service("gateway", GatewaySettings, prepare, uvloop.run)


def prepare(settings: GatewaySettings) -> Service:
    """Listen and load the tokenizers. Raises: BadInput; DilaserveError if the address is not available."""
    raise_connection_limit()
    return_freed_memory()
    # The results of these and of `open_api_keys` are not used: they report wrong settings before the start.
    server_tls(settings.tls_certificate, settings.tls_key)
    ServingTables(settings.service_tiers, settings.reasoning_efforts)
    cells = served_cells(settings)
    open_api_keys(settings)
    sockets = listeners(settings)
    firsts = [of_model[0] for of_model in by_model(cells)]
    texts = [
        TextModel(
            find_model(cell.model, weights=False), cell.model_name, reads_control=settings.control_tokens_in_messages
        )
        for cell in firsts
    ]

    async def serve_until_signal() -> int:
        stop = stop_on_signal()
        freeze_startup_objects()
        return await serve(settings, texts, sockets, stop)

    return serve_until_signal()


def raise_connection_limit() -> None:
    """Raise the limit on open files to the system's maximum; the usual 1,024 is less than the number of connections."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # another limit of the system is lower
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def return_freed_memory() -> None:
    """Have glibc give each large block back to the system when it is freed. Otherwise it keeps most of the memory of a
    load of large bodies for good."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD_OPTION, MMAP_THRESHOLD)


def open_api_keys(settings: GatewaySettings) -> "ApiKeyCache | None":
    """None without `auth`. Raises: BadInput if the database URL is missing or invalid."""
    if not settings.auth:
        return None
    if not settings.database_url:
        raise BadInput("DILASERVE_DATABASE_URL is not set; DILASERVE_AUTH=true requires it")
    from services.gateway.admission.api_keys import ApiKeyCache  # noqa: PLC0415  (imports the database packages: slow)

    return ApiKeyCache(settings.database_url)


async def serve(
    settings: GatewaySettings, texts: Sequence[TextModel], sockets: Sequence[socket.socket], stop: asyncio.Event
) -> int:
    """Serve until `stop` is set; then refuse new requests, let open ones end, and return. `texts`: of each model.

    Returns: 1 if the bus of a cell has ended the connection for good, which sets `stop` too; else 0.

    If several gateways share the port, this one accepts connections once it is ready, at latest after MAX_START_S, and
    leaves the port before it drains, so it refuses no request.
    """
    api_keys = open_api_keys(settings)
    context = AppContext(settings, texts, api_keys)
    server = Server(server_config(settings, context))
    async with api_keys.refreshing() if api_keys else contextlib.nullcontext(), asyncio.TaskGroup() as tasks:

        async def stop_if_closed(bus: Bus) -> None:
            await bus.wait_until_closed()
            stop.set()

        bus_tasks: list[Callable[[Bus], Coroutine[Any, Any, None]]] = [BatchRunner(context).run]
        if settings.auth:
            bus_tasks.append(lambda bus: context.admission.key_use.run(bus, context.own_cell.connection.watch.clock))
        connecting = tasks.create_task(
            run_together(
                cell.run([stop_if_closed, *(bus_tasks if cell is context.own_cell else ())]) for cell in context.cells
            )
        )
        monitoring = [tasks.create_task(cell.monitor.run()) for cell in context.cells]
        if settings.listener_fd is not None:
            await run_until_stopped(stop, until_ready(context))
        server.should_exit = stop.is_set()
        serving = tasks.create_task(server.serve(list(sockets)))
        if not server.should_exit:
            scheme, (host, port) = "https" if server.config.is_ssl else "http", sockets[0].getsockname()[:2]
            models = ", ".join(model.name for model in context.models)
            log.info("listening", url=f"{scheme}://{url_host(host)}:{port}", model=models)
        await stop.wait()
        await drain(settings, context.cells, server, connecting)
        server.should_exit = True
        await cancel(monitoring)
        await serving
    has_lost_a_cell = any(cell.connection.is_closed for cell in context.cells)
    await asyncio.gather(*(cell.connection.close() for cell in context.cells))
    return int(has_lost_a_cell)


def server_config(settings: GatewaySettings, context: AppContext) -> uvicorn.Config:
    """The HTTP server of the API. Raises: BadInput if the TLS files cannot be used."""
    tls = server_tls(settings.tls_certificate, settings.tls_key)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)  # other libraries log warnings only
    return uvicorn.Config(
        WebGuard(build_app(context), settings),
        http=BoundedHttpProtocol,
        ws="none",
        headers=SECURITY_HEADERS,
        lifespan="off",
        log_config=None,
        access_log=settings.access_log,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=2,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )


async def drain(
    settings: GatewaySettings, cells: Sequence[CellContext], server: Server, connecting: asyncio.Task[None]
) -> None:
    """Leave a shared port, refuse new requests, and let open ones end."""
    ends_s = time.monotonic() + settings.drain_timeout_s
    async with during(report_drain(cells, ends_s)):
        if settings.listener_fd is not None:
            for cell in cells:
                cell.monitor.close()  # ends the console's streams, which begin again at another gateway
            await server.leave_port(settings.drain_timeout_s)
        for cell in cells:
            cell.readiness.draining = True
        await cancel([connecting])  # gives batches back to the bus
        await asyncio.gather(*(cell.inflight.drain(max(0.0, ends_s - time.monotonic())) for cell in cells))
    for cell in cells:
        cell.monitor.close()


async def report_drain(cells: Sequence[CellContext], ends_s: float) -> None:
    """Log the open requests and the time that they have left, now and every DRAIN_REPORT_S. Never returns."""
    while True:
        left_s = round(max(0.0, ends_s - time.monotonic()), 1)
        log.info("draining", requests=sum(cell.inflight.count for cell in cells), left_s=left_s)
        await asyncio.sleep(DRAIN_REPORT_S)


async def until_ready(context: AppContext) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MAX_START_S):
            while True:
                with contextlib.suppress(RetryLater):
                    return context.check_ready()
                await asyncio.sleep(CHECK_S)


if __name__ == "__main__":
    run_program("gateway", main)
