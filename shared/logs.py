"""Structured logs: one event with named values a line, as text for people or JSON for collectors.

`structlog.contextvars.bound_contextvars(request_id=…)` puts a request's id on every line within.
"""

import logging
import sys

import structlog


def configure_logs(service: str, *, level: str = "info", form: str = "console") -> None:
    """Set up logging for a process; called once, by its entry point. Everything goes to standard error."""
    shared_steps: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: {"service": service, **event},
    ]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
    )
    structlog.configure(
        processors=[*shared_steps, structlog.processors.format_exc_info, renderer]
        if form == "json"
        else [*shared_steps, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # the stream of now, which a caller may replace
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=f"%(levelname)s {service} %(message)s")
