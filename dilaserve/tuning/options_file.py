"""The options of a tuning, stored beside its results, so that a repeated command continues with the same ones."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from shared.errors import BadInput

FILE = "tune.json"


def check_same_options(directory: Path, options: Mapping[str, str]) -> None:
    """Store the options, or compare them with those of an earlier start. Raises: BadInput naming one that differs."""
    path = directory / FILE
    if not path.exists():
        path.write_bytes(msgspec.json.format(msgspec.json.encode(options)))
        return
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"--out {directory}: {FILE}: {error}; choose another folder") from None
    for name, value in options.items():
        if stored.get(name) != value:
            raise BadInput(
                f"--out {directory} has results with {name} {stored.get(name)}, not {value}; choose another folder"
            )
