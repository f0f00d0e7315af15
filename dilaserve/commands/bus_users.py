"""`dilaserve bus-users`: the users of the bus for a NATS server of your own."""

from typing import Annotated

import typer

from dilaserve.stack.bus_users import server_users
from shared.bus.users import read_producers
from shared.errors import BadInput
from shared.settings import check_cell_name

EXAMPLE = "Example: dilaserve bus-users --cell cell0 > users.conf"


def bus_users(
    *,
    cell: Annotated[
        str, typer.Option(help="Name of the cell, or names of several cells of the server, as a,b.")
    ] = "cell0",
    producers: Annotated[str, typer.Option(help="Names of producers on the bus, as a,b.", show_default="none")] = "",
) -> None:
    """Print the section of a NATS configuration that declares each service's user, with passwords of variables."""
    first, *more = cell.split(",")
    for name in (first, *more):
        check_cell_name(name, "--cell")
    if len({first, *more}) <= len(more):
        raise BadInput(f"--cell {cell}: a name is there more than once")
    typer.echo(server_users(first, read_producers(producers), more), nl=False)
