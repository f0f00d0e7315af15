"""`dilaserve status`: instances, load, thresholds and SLO attainment of the cluster."""

import asyncio
import os
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.live import Live

from dilaserve.outputs import open_console
from dilaserve.stack.data_dir import find_addresses
from dilaserve.stack.observer import cluster_reports
from dilaserve.stack.probes import check_url
from dilaserve.stack.report import render
from shared.bus.users import BusUser
from shared.errors import BadInput
from shared.logs import configure_logs
from shared.service import stop_on_signal
from shared.settings import ServiceSettings, check_cell_name, read_settings
from shared.tasks import run_until_stopped

EXAMPLE = "Example: dilaserve status --watch"


def status(
    *,
    data_dir: Annotated[Path, typer.Option(help="Data directory of a stack on this machine.")] = Path(".data"),
    url: Annotated[str | None, typer.Option(help="Gateway URL; default: the stack's.")] = None,
    nats_url: Annotated[str | None, typer.Option(help="NATS URL; default: the stack's.")] = None,
    cell: Annotated[str | None, typer.Option(help="Name of the cell; default: DILASERVE_CELL, or cell0.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Update continuously until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the cluster's instances, load, thresholds and SLO attainment, and whether the gateway is ready."""
    if watch and json:
        raise BadInput("--watch and --json exclude each other: give one of them")
    configure_logs("status", level="error")
    if cell is not None:
        check_cell_name(cell, "--cell")
    settings = read_settings(ServiceSettings, os.environ)
    url, certificate = check_url("--url", url) if url else None, ""
    nats_ca = settings.nats_ca
    if url is None or nats_url is None:
        addresses = find_addresses(data_dir, os.environ)
        if url is None:
            url, certificate = addresses.url, addresses.tls_certificate
        if nats_url is None:
            nats_url, nats_ca = addresses.nats_urls[BusUser.STATUS], addresses.nats_ca
    asyncio.run(_show(url, certificate, nats_url, nats_ca, cell or settings.cell, watch=watch, json=json))


async def _show(url: str, certificate: str, nats_url: str, nats_ca: str, cell: str, *, watch: bool, json: bool) -> None:
    """Show the state once, or with `watch` a live view, updated with each message of the scheduler, until Ctrl-C."""
    async with aclosing(cluster_reports(url, nats_url, cell, certificate, nats_ca)) as reports:
        if not watch:
            report = await anext(reports)
            if json:
                typer.echo(msgspec.json.encode(report))
            else:
                open_console().print(render(report))
            return

        async def watch_reports() -> None:
            with Live(auto_refresh=False) as live:
                async for latest in reports:
                    live.update(render(latest), refresh=True)

        await run_until_stopped(stop_on_signal(), watch_reports())
