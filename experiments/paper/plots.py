"""Line plots in panels: one row per figure, one column per value of the facet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan

from matplotlib.figure import Figure

Value = str | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """The rows' keys that are drawn."""

    x: str
    y: tuple[str, ...]
    line: str
    facet: str | None = None  # None: one column
    steps: bool = False  # each value holds until the next
    labels: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # by facet, of its axes, where they differ


def draw(panels: Panels, rows: Sequence[Mapping[str, Value]]) -> Figure:
    """Axes of attainment start at 0; others fit their values."""
    facets = list(dict.fromkeys(row[panels.facet] for row in rows)) if panels.facet else [""]
    figure = Figure(figsize=(1 + 3.4 * max(len(facets), 1.5), 0.6 + 2.5 * len(panels.y)), layout="constrained")
    axes = figure.subplots(len(panels.y), len(facets), squeeze=False, sharex="col")
    for column, facet in enumerate(facets):
        shown = [row for row in rows if panels.facet is None or row[panels.facet] == facet]
        for axis, key in zip(axes[:, column], panels.y, strict=True):
            for name in dict.fromkeys(row[panels.line] for row in shown):
                line = [row for row in shown if row[panels.line] == name]
                style = {"drawstyle": "steps-post"} if panels.steps else {"marker": "o", "markersize": 4}
                axis.plot([row[panels.x] for row in line], [row[key] for row in line], label=str(name), **style)
            if all(isinstance(value := row[key], float) and isnan(value) for row in shown):
                axis.set_axis_off()  # the facet has no such figure
                continue
            axis.grid(alpha=0.3)
            if "attainment" in key:
                axis.set_ylim(0, 104)
            if facet in panels.labels:
                axis.set_ylabel(panels.labels[str(facet)][1])
                axis.legend(fontsize="small")
            elif column == 0:
                axis.set_ylabel(key)
        axes[0, column].set_title(f"{panels.facet} {facet}" if isinstance(facet, float | int) else facet, fontsize=10)
        axes[-1, column].set_xlabel(panels.labels[str(facet)][0] if facet in panels.labels else panels.x)
    axes[0, 0].legend(fontsize="small")
    return figure
