"""Traces: one per request, from HTTP over the bus to scheduler, predictor and worker, exported by OTLP.

The W3C context travels in HTTP headers, bus headers and the request's state. Without a collector no span is recorded,
but a client's context is still passed on.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace

MAX_STEP_EVENTS = 64  # step events per span; later steps are left out
SHUTDOWN_S = 1.5  # limit of sending the last spans


def as_ns(unix_s: float) -> int:
    """Unix time in nanoseconds, as spans take it."""
    return int(unix_s * 1e9)


@contextmanager
def telemetry(service: str, otlp_endpoint: str) -> Iterator[None]:
    """Export the spans of this process within the block; the last ones are sent at its end, within SHUTDOWN_S.

    `otlp_endpoint` is a collector's base URL for OTLP over HTTP, such as http://127.0.0.1:4318; empty: no export.
    """
    if not otlp_endpoint:
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(
        resource=Resource.create({"service.name": f"dilaserve-{service}"}), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(endpoint=f"{otlp_endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:  # a collector that does not answer would hold the process for the exporter's own limits
        closing = threading.Thread(target=provider.shutdown, daemon=True)
        closing.start()
        closing.join(SHUTDOWN_S)
