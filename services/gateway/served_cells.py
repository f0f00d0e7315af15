"""The cells that a gateway serves: its own, and those of `more_models`. Several may serve one model. Pure."""

import re
from collections.abc import Sequence
from itertools import combinations

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
    for other, cell in combinations(cells, 2):
        message, is_same_name = "", other.model_name == cell.model_name
        if (other.nats_url, other.cell) == (cell.nats_url, cell.cell):
            message = f"the cell {cell.cell} is there twice; it serves one model"
        elif is_same_name and other.model != cell.model:
            message = f"the name {cell.model_name} is there with two models, {other.model} and {cell.model}"
        elif is_same_name and other.cell == cell.cell:
            message = f"two cells of the model {cell.model_name} have the name {cell.cell}; rename one of them"
        if message:
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
