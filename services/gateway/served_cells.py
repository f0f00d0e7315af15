"""The cells that a gateway serves: its own, and those of `more_models`. Several may serve one model. Pure."""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from services.gateway.settings import GatewaySettings
from shared.errors import BadInput
from shared.model_files import default_model_name
from shared.settings import check_nats_url

VARIABLE = "DILASERVE_MORE_MODELS"
ACCEPTED = "NAME=MODEL@CELL, or NAME=MODEL@URL/CELL for a cell on another NATS server"
ENTRY = re.compile(r"(?P<name>[^=\s]+)=(?P<model>[^@]+)@((?P<url>\S+)/)?(?P<cell>[a-z0-9-]{1,32})")


def served_cells(settings: GatewaySettings) -> list[GatewaySettings]:
    """The settings of each cell, the gateway's own first. Raises: BadInput for an invalid entry or a conflict."""
    own = replace(settings, model_name=settings.model_name or default_model_name(settings.model), more_models=())
    cells = [own, *(_read(own, number, entry) for number, entry in enumerate(settings.more_models, 1))]
    for i, cell in enumerate(cells):
        for other in cells[:i]:
            if (other.nats_url, other.cell) == (cell.nats_url, cell.cell):
                raise BadInput(f"{VARIABLE}: the cell {cell.cell} is there twice; it serves one model", VARIABLE)
            if other.model_name != cell.model_name:
                continue
            if other.model != cell.model:
                message = f"the name {cell.model_name} is there with two models, {other.model} and {cell.model}"
                raise BadInput(f"{VARIABLE}: {message}", VARIABLE)
            if other.cell == cell.cell:
                message = f"two cells of the model {cell.model_name} have the name {cell.cell}; rename one of them"
                raise BadInput(f"{VARIABLE}: {message}", VARIABLE)
    return cells


def by_model(cells: Sequence[GatewaySettings]) -> list[list[GatewaySettings]]:
    """The cells of each model, in the order of their first cells."""
    grouped: dict[str, list[GatewaySettings]] = {}
    for cell in cells:
        grouped.setdefault(cell.model_name, []).append(cell)
    return list(grouped.values())


def _read(own: GatewaySettings, number: int, entry: str) -> GatewaySettings:
    """Messages have the entry's number, as its text may have a password."""
    if (found := ENTRY.fullmatch(entry)) is None:
        raise BadInput(f"{VARIABLE}: entry {number} is not of the form {ACCEPTED}", VARIABLE)
    url = found["url"] or own.nats_url
    check_nats_url(url, f"{VARIABLE}: entry {number}")
    return replace(
        own,
        model=found["model"],
        model_name=found["name"],
        nats_url=url,
        cell=found["cell"],
        alive_file="",  # the connection to the own cell touches it
        bus_store_dir=own.bus_store_dir if url == own.nats_url else "",
    )
