"""The Pareto plot: attainment against accuracy, one panel per load point."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.policies.points import POLICY
from experiments.policies.rows import SYSTEMS
from experiments.policies.verdicts import Means

COLUMNS = 4
MIN_SPAN = 2.0  # points of attainment shown below 100, at least
Scores = Mapping[str, Means]  # by row


def draw(points: Mapping[str, Scores]) -> Figure:
    """One point at least; up and to the right is better."""
    rows = -(-len(points) // COLUMNS)
    figure = Figure(figsize=(3.4 * COLUMNS, 2.9 * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flat
    for axis, (name, scores) in zip(axes, points.items(), strict=False):
        _draw_point(axis, scores)
        axis.set_title(name, fontsize=10)
    for axis in list(axes)[len(points) :]:
        axis.axis("off")
    figure.supxlabel("GSM8K accuracy at the thresholds used, %")
    figure.supylabel("SLO attainment, %")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=6, fontsize="small")
    return figure


def _draw_point(axis: Axes, scores: Scores) -> None:
    for prefix, style in (("infaas-", "o-"), (f"{POLICY}-", "s--")):
        line = [score for name, score in scores.items() if name.startswith(prefix) and SYSTEMS[name].constant]
        axis.plot(
            [s.accuracy for s in line], [s.attainment for s in line], style, markersize=3, label=f"{prefix}constant"
        )
    others = [name for name in scores if not SYSTEMS[name].constant or name.startswith("llumnix")]
    for name, marker in zip(others, "*^v<>DPXhd" * len(others), strict=False):
        size = 12 if name == POLICY else 5
        axis.plot([scores[name].accuracy], [scores[name].attainment], marker, markersize=size, label=name)
    best = max((scores[name].attainment for name in scores if name == POLICY), default=100.0)
    axis.set_ylim(min(100 - 6 * (100 - best), 100 - 5 * MIN_SPAN), 100.5)
    axis.grid(alpha=0.3)
