"""Starts an embedded stack in order, reports when it is ready, keeps it running, and drains it in order."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import structlog

from dilaserve.stack.bus_users import new_passwords, user_url
from dilaserve.stack.data_dir import Addresses, remove_addresses, write_addresses
from dilaserve.stack.nats import nats_programs, server_names, store_dir
from dilaserve.stack.nats_restart import restart_when_unwritable
from dilaserve.stack.node_agent import NodeAgent
from dilaserve.stack.options import NODE, Stack
from dilaserve.stack.ports import client_url
from dilaserve.stack.postgres import database_url, prepare_postgres
from dilaserve.stack.probes import check_answers, gateway_ready, nats_answers, postgres_answers, wait_until
from dilaserve.stack.services import STOP_ORDER, StackPrograms
from dilaserve.stack.supervisor import Supervisor
from dilaserve.stack.up_options import UpOptions
from services.gateway.listeners import listen
from shared.bus.client import Bus
from shared.bus.users import BusUser
from shared.errors import DilaserveError
from shared.messages.cell import CellConfig
from shared.settings import ServiceSettings, check_nats_url, read_settings
from shared.tasks import during, run_beside
from shared.urls import without_credentials

log = structlog.get_logger(__name__)

DRAIN_S = 45.0  # time a program has to exit; the gateway gives open requests 30 s


async def run_cluster(
    stack: Stack, config: CellConfig, on_start: Callable[[], None], on_ready: Callable[[Addresses], None]
) -> None:
    """Run the stack until SIGTERM or Ctrl-C, then drain it; a second signal kills it. `config`: of its cell.

    Raises: BadInput, before any start, if a server that the user named does not answer; BadInput or DilaserveError if a
    program fails permanently, after the others have exited.
    """
    await _check_servers(stack.options)
    on_start()
    stop, killed = asyncio.Event(), asyncio.Event()
    _on_signals(stop, killed)
    supervisor, resources = Supervisor(), AsyncExitStack()

    async def start() -> None:
        await _start(supervisor, resources, stack, config, on_ready)
        await stop.wait()

    async def fail() -> None:
        await asyncio.shield(supervisor.failed)

    try:
        await run_beside(stop.wait(), [start(), fail()])
    finally:
        await resources.aclose()
        await _drain(supervisor, stack.options, killed)


async def _check_servers(options: UpOptions) -> None:
    if options.nats_url:
        check_nats_url(options.nats_url, "--nats-url")
        shown = without_credentials(options.nats_url)
        answers = partial(nats_answers, ca=_settings().nats_ca)
        await check_answers(answers, options.nats_url, f"--nats-url {shown}: NATS with JetStream")
    if options.database_url:
        shown = without_credentials(options.database_url)
        await check_answers(postgres_answers, options.database_url, f"--database-url {shown}: Postgres")


async def _start(
    supervisor: Supervisor,
    resources: AsyncExitStack,
    stack: Stack,
    config: CellConfig,
    on_ready: Callable[[Addresses], None],
) -> None:
    """Start all programs, each after the servers that it needs answer."""
    options, settings = stack.options, _settings()
    nats_urls = await _nats(supervisor, stack)
    database = options.database_url or database_url(options.data_dir / "postgres")
    certificate = str(options.tls_certificate or "")
    addresses = Addresses(
        url=client_url(options.host, options.port, tls=bool(certificate)),
        nats_url=nats_urls[BusUser.PRODUCER],
        nats_urls=nats_urls,
        database_url=database,
        nats_ca=settings.nats_ca,
        tls_certificate=certificate,
        model=str(stack.model),
        auth=stack.auth,
    )
    write_addresses(options.data_dir, addresses)  # before the gateway is ready, so that its clients find it
    listener = None
    if options.gateways > 1:
        listener = resources.enter_context(listen(options.host, options.port))
    programs = StackPrograms(stack, nats_urls, database)
    for program in (*programs.gateways(listener), *programs.serving(config)):
        supervisor.start(program)
    await _postgres(supervisor, options)

    async def connect(user: BusUser) -> Bus:
        bus = await Bus.connect(nats_urls[user], settings.cell, name="supervisor", ca=settings.nats_ca)
        return await resources.enter_async_context(bus)

    if not options.nats_url and options.nats_nodes == 1:  # in a cluster another server takes over
        [server], bus = server_names(1), await connect(BusUser.OPERATOR)
        restarting = restart_when_unwritable(supervisor, server, bus, store_dir(options.data_dir, 1))
        await resources.enter_async_context(during(restarting))
    if stack.reconfigures:
        agent = NodeAgent(supervisor, programs.worker, {spec.name: spec for spec in stack.specs})
        await agent.serve(await connect(BusUser.SUPERVISOR), NODE)
    supervisor.start(programs.reconfigurator())
    await wait_until(partial(gateway_ready, certificate=certificate), addresses.url)
    supervisor.settled = True  # from now on every program is restarted without limit
    on_ready(addresses)


async def _nats(supervisor: Supervisor, stack: Stack) -> dict[str, str]:
    """Start the embedded NATS servers, if they are used. Returns: the URL of the bus for each user, once it answers."""
    options = stack.options
    if options.nats_url:
        return dict.fromkeys(BusUser, options.nats_url)
    passwords = new_passwords(stack.producers)
    servers = nats_programs(options.data_dir, options.nats_nodes, options.sync_interval, _settings().cell, passwords)
    for program in servers.values():
        supervisor.start(program)
    urls = {
        user: ",".join(user_url(user, password, address) for address in servers) for user, password in passwords.items()
    }
    await wait_until(nats_answers, urls[BusUser.STATUS])
    return urls


def _settings() -> ServiceSettings:
    """Settings that the services read from the environment too."""
    return read_settings(ServiceSettings, os.environ)


async def _postgres(supervisor: Supervisor, options: UpOptions) -> None:
    """Start the embedded database, if it is used, and wait until it answers."""
    if options.database_url:
        return
    directory = options.data_dir / "postgres"
    supervisor.start(await asyncio.to_thread(prepare_postgres, directory))
    await wait_until(postgres_answers, database_url(directory))


async def _drain(supervisor: Supervisor, options: UpOptions, killed: asyncio.Event) -> None:
    """Stop the gateway first: its accepted requests need the other services."""
    log.info("finishing running requests, then stopping; interrupt again to kill")
    remove_addresses(options.data_dir)

    async def kill() -> None:
        await killed.wait()
        supervisor.kill()

    async with during(kill()):
        await supervisor.stop(STOP_ORDER, DRAIN_S)
    if killed.is_set():
        raise DilaserveError("killed before all programs had drained")


def _on_signals(stop: asyncio.Event, killed: asyncio.Event) -> None:
    def interrupted() -> None:
        (killed if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted)
