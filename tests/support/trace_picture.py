"""Draws a trace: a row for each span, below its parent."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span

COLOURS = {"gateway": "#4e79a7", "scheduler": "#f28e2b", "predictor": "#76b7b2", "worker": "#59a14f"}
EVENTS = {"step": "|", "result": "."}
MAX_ALIKE = 3  # spans of one name; further ones are left out


def ordered(spans: Mapping[str, Sequence[Span]]) -> list[tuple[int, str, Span]]:
    """The spans by service as a tree: the depth, the service and the span of each, children by their start."""
    of_service = {span.span_id: service for service, some in spans.items() for span in some}
    every = sorted((span for some in spans.values() for span in some), key=lambda span: span.start_time_unix_nano)
    found: list[tuple[int, str, Span]] = []

    def add(span: Span, depth: int) -> None:
        found.append((depth, of_service[span.span_id], span))
        for child in every:
            if child.parent_span_id == span.span_id:
                add(child, depth + 1)

    for span in every:
        if span.parent_span_id not in of_service:
            add(span, 0)
    return found


def draw(spans: Mapping[str, Sequence[Span]], path: Path) -> None:
    """Write the picture of one trace."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    rows, alike = [], Counter[str]()
    for depth, service, span in ordered(spans):
        alike[span.name] += 1
        if alike[span.name] <= MAX_ALIKE:
            rows.append((depth, service.removeprefix("dilaserve-"), span))
    start_ns = min(span.start_time_unix_nano for _, _, span in rows)
    figure = Figure(figsize=(10, 0.34 * len(rows) + 0.9), layout="constrained")
    axes = figure.subplots()
    for row, (_, service, span) in enumerate(rows):
        begin, end = ((at - start_ns) / 1e6 for at in (span.start_time_unix_nano, span.end_time_unix_nano))
        axes.barh(row, max(end - begin, 0.3), left=begin, height=0.6, color=COLOURS[service], alpha=0.75)
        for name, marker in EVENTS.items():
            at_ms = [(event.time_unix_nano - start_ns) / 1e6 for event in span.events if event.name == name]
            axes.plot(at_ms, [row] * len(at_ms), marker, color="black", markersize=7 if marker == "|" else 4)
    labels = [f"{'   ' * depth}{service}: {span.name}" for depth, service, span in rows]
    axes.set_yticks(range(len(rows)), labels, ha="left", fontfamily="monospace", fontsize=8)
    axes.tick_params(axis="y", pad=210, length=0)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds since the request; | step sent or run, . result received")
    figure.savefig(path, dpi=110)
