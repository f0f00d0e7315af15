"""`dilaserve drain`: lets a cell finish its requests while gateways send new ones to the model's other cells."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.draining import drain_cell
from shared.bus.users import BusUser
from shared.logs import configure_logs
from shared.settings import ServiceSettings, check_cell_name, read_settings

EXAMPLE = "Example: dilaserve drain --cell cell1 --nats-url nats://operator:PASSWORD@127.0.0.1:4222"


def drain(
    *,
    cell: Annotated[str, typer.Option(help="Name of the cell.")] = "cell0",
    data_dir: Annotated[Path, typer.Option(help="Data directory of a stack on this machine.")] = Path(".data"),
    nats_url: Annotated[str | None, typer.Option(help="NATS URL; default: the stack's.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let the cell accept requests again.")] = False,
) -> None:
    """Drain a cell, and wait until it has no requests. The order remains, also after restarts, until `--undo`."""
    configure_logs("drain", level="error")
    check_cell_name(cell, "--cell")
    nats_ca = read_settings(ServiceSettings, os.environ).nats_ca
    if nats_url is None:
        addresses = read_addresses(data_dir)
        nats_url, nats_ca = addresses.nats_urls[BusUser.OPERATOR], addresses.nats_ca
    asyncio.run(drain_cell(nats_url, nats_ca, cell, drains=not undo, report=typer.echo))
