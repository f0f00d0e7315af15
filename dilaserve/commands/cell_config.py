"""`dilaserve cell-config`: the values that all services of a cell share."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dilaserve.stack.cell_config import cell_config_of
from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.probes import ANSWER_TIMEOUT_S
from shared.bus.cell_config import read_config
from shared.bus.users import BusUser
from shared.errors import BadInput
from shared.logs import configure_logs
from shared.messages.cell import CellConfig
from shared.service import connect_to_bus
from shared.settings import PREFIX, ServiceSettings, read_settings, to_environ
from shared.urls import without_credentials

EXAMPLE = "Example: dilaserve cell-config --json"


def cell_config(
    *,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Not needed any more: show those that a scheduler with this environment writes."
        ),
    ] = False,
    data_dir: Annotated[Path, typer.Option(help="Data directory of a stack on this machine.")] = Path(".data"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the configuration of a cell: the values that are the same in all its services.

    Reaches the cell by DILASERVE_NATS_URL and DILASERVE_CELL; without a URL, that of the stack in --data-dir.
    """
    configure_logs("cell-config", level="error")
    environ = dict(os.environ)
    if "DILASERVE_NATS_URL" not in environ and not replace:
        addresses = read_addresses(data_dir)
        environ |= to_environ({"nats_url": addresses.nats_urls[BusUser.STATUS], "nats_ca": addresses.nats_ca})
    settings = read_settings(ServiceSettings, environ)

    async def read() -> CellConfig | None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S), await connect_to_bus("cell-config", settings) as bus:
                return await read_config(bus)
        except TimeoutError:
            raise BadInput(f"{without_credentials(settings.nats_url)}: NATS does not answer") from None

    config = cell_config_of(environ) if replace else asyncio.run(read())
    if config is None:
        raise BadInput(f"the cell {settings.cell} has no configuration; its scheduler writes it when it leads")
    if replace:
        note = "Nothing was stored: start the scheduler again with this environment, then the other services."
        typer.echo(note, err=True)
    if json:
        typer.echo(msgspec.json.encode(config))
        return
    for name, text in to_environ(msgspec.structs.asdict(config)).items():
        typer.echo(f"{name.removeprefix(PREFIX).lower():<14} {text or '-'}")
