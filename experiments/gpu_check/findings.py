"""The findings of one stage, and their file."""

import dataclasses
from pathlib import Path
from typing import Literal

import msgspec
import torch

Status = Literal["passed", "FAILED", "skipped", "ERROR"]


class Skipped(Exception):  # noqa: N818
    """The stage does not apply here; the message is the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """The device to check, and whether at toy size."""

    device: torch.device
    is_toy: bool

    @property
    def half(self) -> torch.dtype:
        return torch.bfloat16


class Findings(msgspec.Struct):
    """A stage adds notes, a table and checks; the runner sets the rest."""

    stage: str
    status: Status = "passed"
    reason: str = ""  # why it was skipped, or the error
    seconds: float = 0.0
    notes: list[str] = []
    columns: list[str] = []
    rows: list[list[str]] = []
    checks: dict[str, bool] = {}

    def row(self, *cells: object) -> None:
        assert len(cells) == len(self.columns), "one cell per column"
        self.rows.append([str(cell) for cell in cells])

    def save(self, directory: Path) -> None:
        """Write the file of this stage, atomically."""
        draft = directory / f"{self.stage}.draft"
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))
        draft.replace(directory / f"{self.stage}.json")


def stored(directory: Path, stage: str) -> Findings | None:
    """The findings that an earlier run saved; None if it did not reach this stage, or the file is damaged."""
    try:
        return msgspec.json.decode((directory / f"{stage}.json").read_bytes(), type=Findings)
    except (OSError, msgspec.DecodeError):
        return None
