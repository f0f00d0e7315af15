"""Writes the report of a tuning: a Markdown page with plots."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from dilaserve.tuning.suggestions import TOLERANCE, Quality
from services.predictor.training import TrainedPredictor
from shared.profile import LatencyProfile, kind_name
from simulator.plot import write_figure
from simulator.unloaded_latency import SLO_MULTIPLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    model: str
    device: str
    prompts: int
    cache: str
    profile: LatencyProfile
    trained: TrainedPredictor
    quality: Quality
    thresholds: Sequence[float]  # suggested
    alone_s: float  # latency of a mean request that is alone
    slo_s: float  # suggested
    command: str  # that serves the model with the suggestions


def write_report(directory: Path, tuning: Tuning) -> Path:
    """Write report.md and its plots. Returns: the page's path."""
    write_figure(directory / "latency.png", _draw_latency(tuning.profile))
    write_figure(directory / "thresholds.png", _draw_thresholds(tuning))
    path = directory / "report.md"
    path.write_text(_text(tuning), encoding="utf-8")
    return path


def _text(tuning: Tuning) -> str:
    card, quality, errors = tuning.trained.card, tuning.quality, tuning.trained.report
    rows = zip(card.thresholds, card.tokens_per_step, quality.values, strict=True)
    suggested = set(tuning.thresholds)
    return "\n".join(
        [
            f"# Tuning of {tuning.model}",
            "",
            f"On {tuning.device}, with the cache `{tuning.cache}` and {tuning.prompts} prompts. Serve it with",
            "",
            f"    {tuning.command}",
            "",
            "## Thresholds",
            "",
            f"| threshold | tokens per step | {quality.measure} | suggested |",
            "| --- | --- | --- | --- |",
            *(f"| {t:g} | {rate:.2f} | {value:.1%} | {'yes' if t in suggested else ''} |" for t, rate, value in rows),
            "",
            f"A suggested threshold loses at most {100 * TOLERANCE:g} points of the best quality. Under load every",
            "request may get the lowest one.",
            "",
            "![Quality and tokens per step by threshold](thresholds.png)",
            "",
            "## SLO",
            "",
            f"A request of mean lengths that is alone takes {tuning.alone_s:.2f} s at threshold 0.9. The suggested SLO",
            f"is {SLO_MULTIPLE:g} times that: {tuning.slo_s:g} s.",
            "",
            "## Latency of an iteration",
            "",
            "![Milliseconds by tokens of the batch](latency.png)",
            "",
            "## Step predictor",
            "",
            f"Version {card.version}. Mean relative error of the steps left, on prompts that it did not learn:",
            "",
            "| estimate | constant threshold | changing thresholds |",
            "| --- | --- | --- |",
            *(f"| {name} | {error:.1%} | {errors.changing[name]:.1%} |" for name, error in errors.fixed.items()),
            "",
        ]
    )


def _draw_latency(profile: LatencyProfile) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for (tp, kind), curve in profile.curves.items():
        label = f"TP {tp}, {kind_name(kind)} step"
        axis.plot(curve.batch_tokens, 1000 * curve.latency_s, marker="o", label=label)
    axis.set(xlabel="tokens of the batch", ylabel="ms", title="Latency of an iteration", xscale="log", yscale="log")
    axis.legend()
    return figure


def _draw_thresholds(tuning: Tuning) -> Figure:
    card, quality = tuning.trained.card, tuning.quality
    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    above.plot(quality.thresholds, [100 * value for value in quality.values], marker="o")
    above.set(ylabel=f"{quality.measure}, %", ylim=(0, 105), title=f"{tuning.model}: quality and speed by threshold")
    below.plot(card.thresholds, card.tokens_per_step, marker="o")
    below.set(xlabel="threshold", ylabel="tokens per step")
    for axis in (above, below):
        axis.axvspan(min(tuning.thresholds), max(tuning.thresholds), alpha=0.15, label="suggested")
        axis.grid(alpha=0.3)
    below.set_ylim(bottom=0)
    above.legend()
    return figure
