"""Spans that a test reads, without the process's tracer provider, of which there can be only one."""

from types import ModuleType

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer


def recorded() -> tuple[Tracer, InMemorySpanExporter]:
    """A tracer, and its spans that have ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test"), exporter


def recorded_in(module: ModuleType, patch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that a module's tracer has ended."""
    tracer, exporter = recorded()
    patch.setattr(module, "tracer", tracer)
    return exporter
