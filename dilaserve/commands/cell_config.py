"""`dilaserve cell-config`: the values that all services of a cell share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from shared.messages.cell import CellConfig

EXAMPLE = "Example: dilaserve cell-config --json"


def cell_config(
    *,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Replace them by those of this environment: the variables DILASERVE_* of a scheduler."
        ),
    ] = False,
    data_dir: Annotated[Path, typer.Option(help="Data directory of a stack on this machine.")] = Path(".data"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the configuration of a cell: the values that are the same in all its services.

    Reaches the cell by DILASERVE_NATS_URL and DILASERVE_CELL; without a URL, that of the stack in --data-dir.
    """
    import asyncio  # noqa: PLC0415
    import os  # noqa: PLC0415

    from dilaserve.stack.cell_config import cell_config_of, read_cell_config, replace_cell_config  # noqa: PLC0415
    from dilaserve.stack.data_dir import read_addresses  # noqa: PLC0415
    from dilaserve.stack.probes import ANSWER_TIMEOUT_S  # noqa: PLC0415
    from shared.bus.users import BusUser  # noqa: PLC0415
    from shared.errors import BadInput  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.settings import PREFIX, ServiceSettings, read_settings, to_environ  # noqa: PLC0415
    from shared.urls import without_credentials  # noqa: PLC0415

    configure_logs("cell-config", level="error")
    environ = dict(os.environ)
    if "DILASERVE_NATS_URL" not in environ:
        addresses = read_addresses(data_dir)
        user = BusUser.SCHEDULER if replace else BusUser.STATUS
        environ |= to_environ({"nats_url": addresses.nats_urls[user], "nats_ca": addresses.nats_ca})

    settings = read_settings(ServiceSettings, environ)
    own = cell_config_of(environ) if replace else None

    async def read_or_replace() -> "CellConfig | None":
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                if own is None:
                    return await read_cell_config(settings)
                await replace_cell_config(settings, own)
                return own
        except TimeoutError:
            raise BadInput(f"{without_credentials(settings.nats_url)}: NATS does not answer") from None

    config = asyncio.run(read_or_replace())
    if config is None:
        raise BadInput(f"the cell {settings.cell} has no configuration; its first scheduler writes it")
    if json:
        typer.echo(msgspec.json.encode(config))
        return
    for name, text in to_environ(msgspec.structs.asdict(config)).items():
        typer.echo(f"{name.removeprefix(PREFIX).lower():<14} {text or '-'}")
    if replace:
        typer.echo("Start the services of the cell again; those that run keep the values of before.")
