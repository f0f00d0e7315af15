"""The figures of the finished runs in a CSV file, one line each, so that the study resumes where it stopped."""

import csv
from pathlib import Path

import msgspec

from experiments.policies.points import POINTS
from experiments.policies.rows import SYSTEMS
from experiments.policies.runs import Figures, Run

KEY = ("point", "row", "seed")
PER_CLASS = ("attainment_per_class", "accuracy_per_class")


class RunStore:
    """The file knows runs by the names of their point and row: after a change to these, to the simulator or to the
    scheduler, delete it, or run them again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, str, int], Figures] = {}
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                for line in csv.DictReader(file):
                    key = line.pop("point"), line.pop("row"), int(line.pop("seed"))
                    self._found[key] = _figures(line)

    def get(self, run: Run) -> Figures | None:
        """None: it is not finished."""
        return self._found.get(_key(run))

    def add(self, run: Run, figures: Figures) -> None:
        """Store a finished run; it replaces an earlier one."""
        self._found[_key(run)] = figures
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".part")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow((*KEY, *Figures.__struct_fields__))
            for key, of_run in sorted(self._found.items(), key=lambda item: _order(*item[0])):
                writer.writerow((*key, *_cells(of_run)))
        partial.rename(self._path)


def _key(run: Run) -> tuple[str, str, int]:
    return run.point.name, run.row.name, run.seed


def _order(point: str, row: str, seed: int) -> tuple[int, int, int]:
    """Points and rows in the order of the study, removed ones last."""
    points, rows = list(POINTS), list(SYSTEMS)
    at = [names.index(name) if name in names else len(names) for names, name in ((points, point), (rows, row))]
    return at[0], at[1], seed


def _cells(figures: Figures) -> list[object]:
    fields = msgspec.structs.asdict(figures)
    return [_cell(value) for value in fields.values()]


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return msgspec.json.encode({name: round(number, 4) for name, number in value.items()}).decode() if value else ""
    return f"{value:.4f}" if isinstance(value, float) else value


def _figures(line: dict[str, str]) -> Figures:
    fields: dict[str, object] = {name: value or None for name, value in line.items()}
    for name in PER_CLASS:
        fields[name] = msgspec.json.decode(line.get(name) or "{}")
    return msgspec.convert(fields, Figures, strict=False)
