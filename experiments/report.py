"""A benchmark's report: printed line by line as it grows, then written as Markdown, and its table as CSV."""

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def environment_header() -> str:
    """The processor, its cores, torch's version, the load and the command line, in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    command = shlex.join(["python", *sys.orig_argv[1:]])
    return (
        f"{model or platform.machine()}, {os.cpu_count()} cores, torch {version('torch')}, "
        f"load {os.getloadavg()[0]:.1f}: {command}"
    )


def markdown_table(columns: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    head = list(columns)
    return "\n".join([markdown_row(head), markdown_row(["---"] * len(head)), *map(markdown_row, rows)])


def markdown_row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def target_list(targets: Mapping[str, bool]) -> str:
    """A Markdown list: each target, and whether it is reached."""
    return "\n".join(f"- {name}: {'reached' if reached else 'MISSED'}" for name, reached in targets.items())


class Report:
    """Title, environment header and notes, then paragraphs and rows in the order in which they are added."""

    def __init__(self, title: str, *notes: str) -> None:
        self._lines: list[str] = []
        self._columns = 0
        self.add(f"# {title}", environment_header(), *notes)

    def add(self, *paragraphs: str) -> None:
        for paragraph in paragraphs:
            self._print("", paragraph) if self._lines else self._print(paragraph)

    def add_columns(self, *names: str) -> None:
        """Start the table."""
        self._columns = len(names)
        self._print("", markdown_table(names, ()))

    def add_row(self, *cells: object) -> None:
        row = [str(cell) for cell in cells]
        assert len(row) == self._columns, "one cell per column"
        self._print(markdown_row(row))

    def write(self, path: Path, *, append: bool = False) -> None:
        """Write the Markdown; `append` adds it without its title to an existing file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if append and path.exists():
            text = "\n".join([path.read_text(encoding="utf-8"), *self._lines[2:]])
        else:
            text = "\n".join(self._lines)
        path.write_text(text + "\n", encoding="utf-8")

    def _print(self, *lines: str) -> None:
        self._lines += lines
        print("\n".join(lines), flush=True)
