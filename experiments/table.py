"""A table of results: printed row by row as it grows, then kept as Markdown for readers and as CSV for programs."""

import csv
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


class Table:
    """`said` stands above it: the machine, the command line, what was measured."""

    def __init__(self, title: str, said: str, columns: list[str]) -> None:
        self._columns = columns
        self._rows: list[list[str]] = []
        self._lines = [f"# {title}", "", *said.splitlines(), ""]
        print("\n".join(self._lines))
        self._put(columns)
        self._put(["---"] * len(columns))

    def add(self, *cells: object) -> None:
        row = [str(cell) for cell in cells]
        assert len(row) == len(self._columns), "one cell a column"
        self._rows.append(row)
        self._put(row)

    def write(self, name: str) -> None:
        """To experiments/results/NAME.md and NAME.csv."""
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.md").write_text("\n".join(self._lines) + "\n", encoding="utf-8")
        with (RESULTS / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([self._columns, *self._rows])

    def _put(self, cells: list[str]) -> None:
        self._lines.append(f"| {' | '.join(cells)} |")
        print(self._lines[-1], flush=True)
