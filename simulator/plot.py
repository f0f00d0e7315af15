"""Draws the timeline: arrivals, threshold, attainment, latency, and the cluster's configuration."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

PANELS = (  # the key of an entry, its label, and the top of the axis; None: as the values
    ("rps", "requests / s", None),
    ("mean_threshold", "mean threshold", 1.02),
    ("slo_attainment", "SLO attainment", 1.02),
    ("mean_latency_s", "mean latency, s", None),
    ("p99_latency_s", "p99 latency, s", None),
)

Timeline = Sequence[Mapping[str, Any]]


def draw_timelines(timelines: Mapping[str, Timeline], title: str = "") -> Figure:
    """A line for each timeline in each panel, without its last, partial entry; below, the instances of the last one."""
    timelines = {name: timeline[:-1] or timeline for name, timeline in timelines.items()}
    figure = Figure(figsize=(9, 13), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(PANELS) + 1, sharex=True)
    for axis, (key, label, top) in zip(axes, PANELS, strict=False):
        for name, timeline in timelines.items():
            values = np.array([entry[key] for entry in timeline], dtype=float)  # None becomes nan
            axis.plot(_minutes(timeline), values, label=name, linewidth=1)
        axis.set_ylim(0, top)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    if any(timelines):
        axes[1].legend(loc="lower left", fontsize="small")
    _draw_instances(axes[-1], list(timelines.values())[-1])
    axes[-1].set_xlabel("minutes")
    return figure


def write_figure(path: Path, figure: Figure) -> None:
    """Write a PNG, or an HTML page that holds it."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    if path.suffix == ".html":
        data = base64.b64encode(image.getvalue()).decode()
        path.write_text(f'<!doctype html><title>Timeline</title><img src="data:image/png;base64,{data}">\n', "utf-8")
    else:
        path.write_bytes(image.getvalue())


def _draw_instances(axis: Any, timeline: Timeline) -> None:
    degrees = sorted({int(tp) for entry in timeline for tp in entry["instances_per_tp"]})
    counts = [[entry["instances_per_tp"].get(str(tp), 0) for entry in timeline] for tp in degrees]
    if degrees:
        axis.stackplot(_minutes(timeline), counts, labels=[f"TP-{tp}" for tp in degrees], step="post", alpha=0.7)
        axis.legend(loc="lower left", fontsize="small")
    axis.set_ylabel("instances")


def _minutes(timeline: Timeline) -> list[float]:
    return [entry["t_s"] / 60 for entry in timeline]
