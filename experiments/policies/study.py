"""The cells of the study: which runs are asked for, simulated in parallel, and stored."""

import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatchcase

from experiments.policies.points import POINTS
from experiments.policies.rows import SYSTEMS
from experiments.policies.runs import Figures, Run
from experiments.policies.store import RunStore
from experiments.policies.tables import Runs
from shared.errors import BadInput


def selected(names: Iterable[str], patterns: str) -> list[str]:
    """The names that match one of the comma-separated patterns. Raises: BadInput if a pattern matches none."""
    known = list(names)
    for pattern in patterns.split(","):
        if not any(fnmatchcase(name, pattern) for name in known):
            raise BadInput(f"{pattern!r} matches none of {', '.join(known)}")
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns.split(","))]


def runs_of(points: Sequence[str], rows: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """The cells of the study, of each point those of its rows."""
    return [
        Run(POINTS[point], SYSTEMS[row], seed)
        for point in points
        for row in rows
        if row in selected(SYSTEMS, POINTS[point].rows)
        for seed in seeds
    ]


def simulate_all(runs: Sequence[Run], store: RunStore, jobs: int, *, again: bool) -> None:
    """Simulate the runs that are not stored, `jobs` at a time, and store them; print one line for each."""
    left = [run for run in runs if again or store.get(run) is None]
    print(f"{len(runs) - len(left)} of {len(runs)} runs are stored", flush=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each process has one core
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run.simulate): run for run in left}
        for number, done in enumerate(as_completed(running), 1):
            run, found = running[done], done.result()
            store.add(run, found)
            figures = f"{found.attainment:.2f} / {found.accuracy:.2f} / {found.mean_s:.2f} s, CPU {found.cpu_s:.0f} s"
            print(f"{number}/{len(left)} {run.point.name}, {run.row.name}, seed {run.seed}: {figures}", flush=True)


def by_point(runs: Sequence[Run], store: RunStore) -> dict[str, Runs]:
    """The stored figures by point and row; rows without all of their seeds are left out."""
    found: dict[str, dict[str, list[Figures]]] = {}
    for run in runs:
        figures = store.get(run)
        if figures is not None:
            found.setdefault(run.point.name, {}).setdefault(run.row.name, []).append(figures)
    seeds = len({run.seed for run in runs})
    whole = {
        point: {row: of_row for row, of_row in rows.items() if len(of_row) == seeds} for point, rows in found.items()
    }
    return {point: rows for point, rows in whole.items() if rows}
