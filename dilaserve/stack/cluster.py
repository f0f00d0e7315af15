"""The life of an embedded stack: start in order, say when it is ready, keep it running, drain in order."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import structlog

from dilaserve.stack.data_dir import Addresses, remove_addresses, write_addresses
from dilaserve.stack.nats import nats_program
from dilaserve.stack.options import NODE, StackOptions
from dilaserve.stack.ports import LOOPBACK, client_url, free_port
from dilaserve.stack.postgres import database_url, prepare_postgres
from dilaserve.stack.probes import check_answers, gateway_ready, nats_answers, postgres_answers, wait_until
from dilaserve.stack.services import STOP_ORDER, reconfigurator_program, serving_programs, worker_program
from dilaserve.stack.supervisor import Supervisor
from shared.errors import DilaserveError
from shared.settings import ServiceSettings, read_settings

log = structlog.get_logger(__name__)

DRAIN_S = 45.0  # how long a program may take to end what it has in hand; the gateway gives open requests 30 s


async def run_cluster(options: StackOptions, on_ready: Callable[[Addresses], None]) -> None:
    """Run the stack until SIGTERM or Ctrl-C, then drain it; a second one kills it.

    Raises: BadInput, before anything is started, if a server of the user's own does not answer; BadInput or
    DilaserveError when a part can never run, after all others have ended.
    """
    await _check_servers(options)
    stop, killed = asyncio.Event(), asyncio.Event()
    _on_signals(stop, killed)
    supervisor, following = Supervisor(), AsyncExitStack()
    starting = asyncio.create_task(_start(supervisor, following, options, on_ready))
    stopping = asyncio.create_task(stop.wait())
    try:
        await _first_of(starting, stopping, supervisor.hopeless)
        if starting.done():
            starting.result()
            await _first_of(stopping, supervisor.hopeless)
        if supervisor.hopeless.done():
            supervisor.hopeless.result()
    finally:
        starting.cancel()
        stopping.cancel()
        await following.aclose()
        await _drain(supervisor, options, killed)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _check_servers(options: StackOptions) -> None:
    if options.nats_url:
        await check_answers(
            partial(nats_answers, options.nats_url), f"--nats-url {options.nats_url}: NATS with JetStream"
        )
    if options.database_url:
        await check_answers(
            partial(postgres_answers, options.database_url), f"--database-url {options.database_url}: Postgres"
        )


async def _start(
    supervisor: Supervisor,
    following: AsyncExitStack,
    options: StackOptions,
    on_ready: Callable[[Addresses], None],
) -> None:
    """Start every program; those that need another wait until it answers."""
    nats_url = await _nats(supervisor, options)
    database = options.database_url or database_url(options.data_dir / "postgres")
    addresses = Addresses(url=client_url(options.host, options.port), nats_url=nats_url, database_url=database)
    write_addresses(options.data_dir, addresses)  # before the gateway answers: who waits for it may look for them then
    for program in serving_programs(options, nats_url, database):
        supervisor.start(program)
    await _postgres(supervisor, options)
    if options.reconfigure:
        await following.enter_async_context(_orders_followed(supervisor, options, nats_url))
    supervisor.start(reconfigurator_program(options, nats_url, database))
    await wait_until(partial(gateway_ready, addresses.url))
    supervisor.settled = True  # from now on whatever ends is started again, however often
    on_ready(addresses)


@asynccontextmanager
async def _orders_followed(supervisor: Supervisor, options: StackOptions, nats_url: str) -> AsyncIterator[None]:
    """Start and stop workers for the reconfigurator."""
    from dilaserve.stack.node_agent import NodeAgent  # noqa: PLC0415
    from shared.bus.client import Bus  # noqa: PLC0415

    cell = read_settings(ServiceSettings, os.environ).cell
    bus = await Bus.connect(nats_url, cell, name="supervisor")
    await NodeAgent(supervisor, partial(worker_program, options, nats_url), options.specs).serve(bus, NODE)
    try:
        yield
    finally:
        await bus.nc.close()


async def _nats(supervisor: Supervisor, options: StackOptions) -> str:
    """The URL of the bus, once it answers."""
    if options.nats_url:
        return options.nats_url
    port = free_port()
    supervisor.start(nats_program(options.data_dir / "nats", port, options.sync_interval))
    url = f"nats://{LOOPBACK}:{port}"
    await wait_until(partial(nats_answers, url))
    return url


async def _postgres(supervisor: Supervisor, options: StackOptions) -> None:
    """Start the embedded database, if it is that one; returns once it answers."""
    if options.database_url:
        return
    directory = options.data_dir / "postgres"
    supervisor.start(await asyncio.to_thread(prepare_postgres, directory))
    await wait_until(partial(postgres_answers, database_url(directory)))


async def _drain(supervisor: Supervisor, options: StackOptions, killed: asyncio.Event) -> None:
    """Stop the gateway first, so that what it has accepted still finds everything else at work."""
    log.info("draining; interrupt again to kill")
    remove_addresses(options.data_dir)
    draining = asyncio.create_task(supervisor.stop(STOP_ORDER, DRAIN_S))
    killing = asyncio.create_task(killed.wait())
    await asyncio.wait([draining, killing], return_when=asyncio.FIRST_COMPLETED)
    if killed.is_set():
        supervisor.kill()
    await draining
    killing.cancel()
    if killed.is_set():
        raise DilaserveError("killed before everything had drained")


def _on_signals(stop: asyncio.Event, killed: asyncio.Event) -> None:
    def interrupted() -> None:
        (killed if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted)
