"""Starts and stops a service: settings, logs, traces, signals, the connection to the bus."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any, NoReturn

import structlog

from shared.bus.client import Bus
from shared.bus.tls import bus_client
from shared.errors import BadInput, DilaserveError
from shared.health import report_health
from shared.logs import configure_logs
from shared.settings import S, ServiceSettings, read_settings, removed_variables
from shared.tasks import cancel, run_until_stopped
from shared.telemetry import telemetry

log = structlog.get_logger(__name__)

GC_THRESHOLDS = 50_000, 20, 100  # new objects, and collections of the younger generation, before a collection

Service = Coroutine[Any, Any, int | None]  # runs until SIGTERM or SIGINT; its result is the exit status, None is 0


def run_service(
    name: str,
    kind: type[S],
    prepare: Callable[[S], Service],
    run: Callable[[Service], int | None],
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Read the settings, `prepare` the service and `run` it, such as by `uvloop.run`.

    Returns: the exit status. BadInput, and any error before the run, print one line on standard error; BadInput is 2,
    others are 1.
    """
    try:
        settings = read_settings(kind, environ)
        configure_logs(name, level=settings.log_level, form=settings.log_format)
        for variable in removed_variables(kind, environ):
            log.warning("the setting was removed, its value is ignored", variable=variable)
        bus_client(settings.nats_url, settings.nats_ca)  # reports a wrong file before the start
        service = prepare(settings)
    except DilaserveError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 2 if isinstance(error, BadInput) else 1
    with telemetry(name, settings.otlp_endpoint):
        try:
            return run(service) or 0
        except* BadInput as errors:
            refusal = errors
    sys.stderr.write(f"{name}: {_first(refusal)}\n")
    return 2


def run_program(name: str, main: Callable[[], int]) -> NoReturn:
    """`python -m services.NAME`: a service takes no argument but `--version`, since its settings are variables."""
    match sys.argv[1:]:
        case []:
            sys.exit(main())
        case ["--version"]:
            sys.stdout.write(f"dilaserve {name} {version('dilaserve')}\n")
            sys.exit(0)
        case given:
            accepted = "accepted: --version; settings are variables of the environment (docs/configuration.md)"
            sys.stderr.write(f"{name}: {' '.join(given)}: {accepted}\n")
            sys.exit(2)


def _first(error: BaseException) -> BaseException:
    """The first error of a group, or the error itself."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def freeze_startup_objects() -> None:
    """Exempt the objects of start-up, mostly modules, from garbage collection: each full one would scan them, a pause
    of tenths of a second. Collect the others less often: most of a burst, such as a backlog, is no garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def stop_on_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def connect_to_bus(name: str, settings: ServiceSettings) -> Bus:
    """As `Bus.connect`."""
    url, cell, ca = settings.nats_url, settings.cell, settings.nats_ca
    return await Bus.connect(url, cell, name=name, alive_file=settings.alive_file, ca=ca)


async def serve_on_bus(
    name: str,
    settings: ServiceSettings,
    serve: Callable[[Bus, asyncio.Event], Coroutine[Any, Any, int | None]],
    *,
    reports_health: bool = True,
) -> int | None:
    """Connect to the bus, `serve` until a signal sets the event, and disconnect. Returns: the result of `serve`; 1 if
    the bus has ended the connection for good: the supervisor starts the service again.

    An instance does not report its health: it is registered.
    """
    stop = stop_on_signal()
    connecting = connect_to_bus(name, settings)
    bus = await run_until_stopped(stop, connecting)
    if bus is None:
        return None
    reporting = [asyncio.create_task(report_health(bus, name))] if reports_health else []
    try:
        status = await run_until_stopped(bus.closed, serve(bus, stop))
        if not bus.closed.is_set():
            return status
        await bus.wait_until_closed()
        return 1
    finally:
        await cancel(reporting)
        with suppress(Exception):
            await bus.close()
