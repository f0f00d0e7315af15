"""Measures the latency profile of several TP degrees, with progress."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.progress import Progress

from services.worker.model.model_loading import CacheSize, ModelChoice, device_name, open_runner
from services.worker.profile.profiler import ProfilePlan, cache_tokens_for, measure
from shared.profile import LatencyProfile, RowKind, kind_name

MAX_LOAD = 0.5  # of each core, in the last minute


def measure_degrees(
    choice: ModelChoice, degrees: Sequence[int], plan: ProfilePlan, progress: Progress
) -> Iterator[tuple[LatencyProfile, str]]:
    """Yields: the profile of each TP degree, and the device's name. Raises: BadInput if the model cannot run."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > MAX_LOAD * cores:
        progress.console.print(
            f"Warning: the machine is busy (load {load:.1f}, {cores} cores): the latencies may be too long."
        )
    task = progress.add_task("", total=plan.num_points * len(degrees))
    for degree in degrees:

        def on_point(kind: RowKind, tokens: int, degree: int = degree) -> None:
            text = f"tp {degree}, {kind_name(kind)} iteration of {tokens} tokens"
            progress.update(task, advance=1, description=text)

        with open_runner(replace(choice, tp=degree), CacheSize(1, cache_tokens_for(plan))) as runner:
            yield measure(runner, degree, plan, on_point), device_name(runner.device)
