"""Checks a command's output files before its work, and prints its output."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress

from shared.errors import BadInput

LINE_S = 10.0  # between two lines of progress
FIGURES = (".png", ".html")


def check_file(option: str, path: Path | None) -> None:
    """Raises: BadInput if `path` is given and the file cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise BadInput(f"{option} {path}: is a directory; accepted: a file")
    if not path.parent.is_dir():
        raise BadInput(f"{option} {path}: no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"{option} {path}: not writable")


def check_directory(option: str, path: Path) -> None:
    """Create the directory if it is missing. Raises: BadInput if it cannot be created or written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{option} {path}: {error.strerror}; accepted: a directory") from None
    if not os.access(path, os.W_OK):
        raise BadInput(f"{option} {path}: not writable")


def check_figure(option: str, path: Path | None) -> None:
    """Like check_file. Raises: BadInput also for a suffix other than FIGURES, or without the package that draws."""
    check_file(option, path)
    if path is not None and path.suffix not in FIGURES:
        raise BadInput(f"{option} {path}: accepted: a file name that ends in {' or '.join(FIGURES)}")
    if path is not None:
        check_plots(f"{option} {path}")


def check_plots(use: str) -> None:
    """Raises: BadInput without the package that draws."""
    if find_spec("matplotlib") is None:
        raise BadInput(f"{use}: needs matplotlib: pip install --editable '.[plots]'")


def number(value: float | None) -> str:
    """A number with three decimals; `-` for None."""
    return "-" if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """A ratio in percent; `-` for None."""
    return "-" if value is None else f"{value:.1%}"


def distribution(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items())


def shared_rows(result: Mapping[str, Any]) -> dict[str, str]:
    """The figures of a RESULT.json, measured or simulated, as names and texts."""
    return {
        "requests": f"{result['requests']} ({result['completed']} completed, {result['failed']} failed)",
        "SLO attainment": percent(result["slo_attainment"]),
        "latency, s": distribution(result["latency_s"]),
        "mean threshold": number(result["mean_threshold"]),
        "mean steps": number(result["mean_steps"]),
        "migrations": str(result["migrations"]),
    }


def print_rows(rows: Mapping[str, str]) -> None:
    width = max(map(len, rows))
    for name, text in rows.items():
        typer.echo(f"{name:<{width}}  {text}")


def open_console() -> Console:
    """Standard output, for tables."""
    return Console(soft_wrap=True, highlight=False)


@contextmanager
def open_progress() -> Iterator[Progress]:
    """Progress on standard error: bars in a terminal, elsewhere a line for each task every LINE_S."""
    console = Console(stderr=True)
    ended = threading.Event()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        lines = threading.Thread(target=_print_lines, args=(progress, ended), daemon=True)
        if not console.is_terminal:
            lines.start()
        try:
            yield progress
        finally:
            ended.set()
            if lines.is_alive():
                lines.join()  # a line is not printed after its command has ended


def _print_lines(progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(LINE_S):
        for task in progress.tasks:
            if not task.finished:
                of = "" if task.total is None else f" of {task.total:.0f}"
                sys.stderr.write(f"{task.description}: {task.completed:.0f}{of}, {task.elapsed or 0.0:.0f} s\n")


def add_bar(progress: Progress, name: str, total: int) -> Callable[[], None]:
    """Add a bar. Returns: a function that advances it by one."""
    task = progress.add_task(name, total=total)
    return lambda: progress.advance(task)
