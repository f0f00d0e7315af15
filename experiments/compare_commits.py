"""Compare one figure of a command between an earlier commit and this working tree, in interleaved pairs of runs.

    python -m experiments.compare_commits BASE [OPTIONS] -- COMMAND...

The commit is checked out in a temporary directory, removed at the end. Each run has its own tree as working directory
and as PYTHONPATH, so BASE may be of an older layout; `python` is the interpreter that runs this. The scheduler's step
items per second, against the commit before the packages were laid out:

    python -m experiments.compare_commits c9a87d6 --higher-is-better -- \
        python -c "from experiments.scheduler_throughput import measure; print(measure(16, 1).items_per_s)"

The whole `python -m experiments.scheduler_throughput` works, too (--figure '([\\d,]+) items/s'), but takes longer and
rewrites its stored results in the working tree.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from experiments.report import Report

NUMBER = r"(-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)"


def figure(output: str, pattern: str) -> float:
    """The last match of `pattern` in a command's output: its first group, or all of it, without thousands separators.

    Raises: ValueError if nothing matches, or what matches is not a number.
    """
    matches = list(re.finditer(pattern, output))
    if not matches:
        raise ValueError(f"nothing in the output matches {pattern!r}:\n{output}")
    last = matches[-1]
    return float(last[1 if last.re.groups else 0].replace(",", ""))


def is_worse(ratios: Sequence[float], limit: float, *, higher_is_better: bool) -> bool:
    """Whether the median ratio, this tree to base, is worse than 1 by more than `limit`."""
    change = statistics.median(ratios) - 1
    return (-change if higher_is_better else change) > limit


def summary(ratios: Sequence[float]) -> str:
    """The median ratio and the range of the ratios."""
    return f"median {statistics.median(ratios):.3f}, range {min(ratios):.3f} to {max(ratios):.3f}"


@contextmanager
def worktree(root: Path, commit: str) -> Iterator[Path]:
    """A checkout of `commit` in a temporary directory. Raises: ValueError if there is no such commit."""
    with tempfile.TemporaryDirectory(prefix="dilaserve-base-") as directory:
        tree = Path(directory) / "base"
        try:
            _git(root, "worktree", "add", "--quiet", "--detach", str(tree), commit)
            yield tree
        finally:
            if tree.exists():
                _git(root, "worktree", "remove", "--force", str(tree))


def run(tree: Path, command: Sequence[str], pattern: str) -> float:
    """Run the command in `tree`. Returns: its figure. Raises: ValueError if it fails or prints no figure."""
    program = sys.executable if command[0] in {"python", "python3"} else command[0]
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    return figure(_output([program, *command[1:]], tree, environ), pattern)


def _git(root: Path, *arguments: str) -> str:
    return _output(["git", *arguments], root, None).strip()


def _output(command: Sequence[str], directory: Path, environ: dict[str, str] | None) -> str:
    ended = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ValueError(f"exit status {ended.returncode} of {' '.join(command)}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def main(
    base: Annotated[str, typer.Argument(help="The commit to compare with.")],
    command: Annotated[list[str], typer.Argument(help="The command to run in both trees, after `--`.")],
    *,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of runs; the order within them alternates.")] = 5,
    pattern: Annotated[
        str, typer.Option("--figure", help="Regular expression of the figure; the last match in the output counts.")
    ] = NUMBER,
    limit: Annotated[float, typer.Option(min=0, help="How much worse the median may be: 0.05 is 5 %.")] = 0.05,
    higher_is_better: Annotated[bool, typer.Option("--higher-is-better/--lower-is-better")] = True,
) -> None:
    """Print the table. Exit status 1: the median is worse than the limit allows; 2: a command failed."""
    ratios: list[float] = []
    try:
        root = Path(_git(Path.cwd(), "rev-parse", "--show-toplevel"))
        with worktree(root, base) as base_tree:
            report = Report("Comparison of two commits", f"base {_git(base_tree, 'rev-parse', '--short', 'HEAD')}")
            report.add_columns("pair", "base", "this", "this/base")
            for number in range(1, pairs + 1):
                order = (base_tree, root) if number % 2 else (root, base_tree)
                figures = {tree: run(tree, command, pattern) for tree in order}
                ratios.append(figures[root] / figures[base_tree])
                report.add_row(number, f"{figures[base_tree]:g}", f"{figures[root]:g}", f"{ratios[-1]:.3f}")
    except ValueError as error:
        sys.stderr.write(f"compare_commits: {error}\n")
        raise typer.Exit(2) from error
    worse = is_worse(ratios, limit, higher_is_better=higher_is_better)
    report.add(f"this/base: {summary(ratios)}: {'WORSE than' if worse else 'within'} the limit of {limit:.0%}")
    raise typer.Exit(1 if worse else 0)


if __name__ == "__main__":
    typer.run(main)
