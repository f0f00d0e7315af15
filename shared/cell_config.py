"""Compares the environment of a service with the configuration of its cell. Pure."""

from collections.abc import Mapping

from shared.errors import BadInput
from shared.messages.cell import DEFAULT_BLOCK_CAUSAL_CACHE, DEFAULT_CACHE, CacheName, CellConfig
from shared.messages.instances import ModelCard
from shared.settings import to_environ

NAMES = {"model": "the model", "predictor": "the step predictor"}  # of values that are not a setting's own


def default_cache(model: ModelCard) -> CacheName:
    """The fastest KV cache of the model."""
    return DEFAULT_BLOCK_CAUSAL_CACHE if model.block_length else DEFAULT_CACHE


def check_config(cell: str, config: CellConfig, own: Mapping[str, object]) -> None:
    """Compare the configuration with a service's own values, by the names of the fields; None or empty: not set.

    A value that the cell does not use differs from none. Raises: BadInput naming each value that differs.
    """
    cells = {name: getattr(config, name) for name in own}
    differing = [
        f"{_named(name, value)}, not {_text(cells[name])}"
        for name, value in own.items()
        if value not in (None, (), cells[name]) and cells[name] not in (None, "")
    ]
    if differing:
        fix = "unset or change it, or replace the cell's configuration with `dilaserve cell-config --replace`"
        raise BadInput(f"not as in the cell {cell}: {'; '.join(differing)}; {fix}")


def _named(name: str, value: object) -> str:
    if name in NAMES:
        return f"{NAMES[name]} {_text(value)}"
    [(variable, text)] = to_environ({name: value}).items()
    return f"{variable}={text}"


def _text(value: object) -> str:
    return next(iter(to_environ({"value": value}).values()), "") or "none"
