"""STEPS.csv: how many tokens a denoising step unmasks, on average, at each confidence threshold."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared.arrays import Float64
from shared.errors import BadInput

COLUMNS = ("threshold", "tokens_per_step")


@dataclass(frozen=True, slots=True)
class StepsTable:
    """Shapes: all [n], thresholds ascending. Values are interpolated linearly, and constant beyond the thresholds."""

    thresholds: Float64
    tokens_per_step: Float64  # recompute steps included
    accuracy: Float64 | None = None  # percent

    def tokens_at(self, thresholds: Float64) -> Float64:
        """Mean tokens unmasked by a step. Shapes: any -> the same."""
        return np.interp(thresholds, self.thresholds, self.tokens_per_step)

    def accuracy_at(self, thresholds: Float64) -> Float64 | None:
        """Percent; None if the table has no accuracy. Shapes: any -> the same."""
        return None if self.accuracy is None else np.interp(thresholds, self.thresholds, self.accuracy)


def read_steps(path: Path) -> StepsTable:
    """Raises: BadInput naming the file and its fault."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read_table(csv.DictReader(file))
    except BadInput as error:
        raise BadInput(f"{path}: {error.message}", "steps") from None
    except (OSError, TypeError, ValueError, csv.Error) as error:
        raise BadInput(f"cannot read the steps table {path}: {error}", "steps") from None


def _read_table(reader: "csv.DictReader[str]") -> StepsTable:
    names = tuple(reader.fieldnames or ())
    if missing := [name for name in COLUMNS if name not in names]:
        raise BadInput(f"needs the columns {','.join(COLUMNS)}; missing: {','.join(missing)}")
    rows = sorted(reader, key=lambda row: float(row["threshold"]))
    columns = [np.array([float(row[name]) for row in rows]) for name in (*COLUMNS, "accuracy") if name in names]
    thresholds, tokens_per_step, *_ = columns
    if not rows:
        raise BadInput("the steps table has no rows")
    if not ((thresholds > 0) & (thresholds <= 1)).all() or (np.diff(thresholds) <= 0).any():
        raise BadInput("thresholds must be different numbers in (0, 1]")
    if not (tokens_per_step >= 1).all() or (np.diff(tokens_per_step) > 0).any():
        raise BadInput("tokens_per_step must be at least 1, and must not rise with the threshold")
    return StepsTable(*columns)
