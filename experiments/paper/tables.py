"""The rows of a study: as CSV, and as text."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, isnan
from pathlib import Path

from experiments.report import markdown_table

Value = str | float
Row = Mapping[str, Value]


def read_table(path: Path) -> list[Row]:
    """The stored rows; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows, which have the same keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def rounded(row: Row) -> Row:
    return {key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()}


def pick(rows: Sequence[Row], **labels: Value) -> list[Row]:
    """The rows with these labels; `_` in a label's name is a space."""
    wanted = {name.replace("_", " "): value for name, value in labels.items()}
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


@dataclass(frozen=True, slots=True)
class Gain:
    """The difference between two systems at one setting. Units: points."""

    attainment: float
    accuracy: float


def gains(rows: Sequence[Row], than: str, system: str = "DiLaServe", accuracy: str = "accuracy, %") -> list[Gain]:
    """The gains of `system` over `than`, at each setting of both, in order; `accuracy` names its column."""
    keys = ("SLO attainment, %", accuracy)
    return [
        Gain(*(number(better, key) - number(worse, key) for key in keys))
        for better, worse in product(pick(rows, system=system), pick(rows, system=than))
        if settings(better) == settings(worse)
    ]


def widest_gain(
    rows: Sequence[Row], than: str, system: str = "DiLaServe", least: float = -inf, accuracy: str = "accuracy, %"
) -> str:
    """The widest gain in attainment where accuracy changes by at least `least` points, and that change."""
    allowed = [gain for gain in gains(rows, than, system, accuracy) if isnan(gain.accuracy) or gain.accuracy >= least]
    best = max(allowed, key=lambda gain: gain.attainment)
    lost = "not known" if isnan(best.accuracy) else f"{best.accuracy:+.1f} points there"
    return f"{best.attainment:+.1f} points, accuracy {lost}"


def settings(row: Row) -> dict[str, Value]:
    """The labels of a row, which precede its figures, without the system."""
    keys = list(row)
    return {key: row[key] for key in keys[: keys.index("SLO attainment, %")] if key != "system"}


def number(row: Row, key: str) -> float:
    value = row[key]
    assert isinstance(value, int | float), f"{key} is a number"
    return float(value)


def show(value: Value) -> str:
    """The text of a table's cell; a figure that does not exist is a dash."""
    if isinstance(value, str):
        return value
    if isnan(value):
        return "-"
    if value == int(value):
        return f"{value:.0f}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.1f}"


def markdown(rows: Sequence[Row]) -> str:
    """A table; all rows have the keys of the first."""
    return markdown_table(rows[0], ([show(row[key]) for key in rows[0]] for row in rows))


def _value(text: str) -> Value:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
