"""Structured logs: one event with named values per line, as text for people or JSON for collectors.

`structlog.contextvars.bound_contextvars(request_id=…)` adds a request's id to every line within.
"""

import logging
import sys

import structlog
from stamina.instrumentation import RetryDetails, set_on_retry_hooks


def configure_logs(service: str, *, level: str = "info", form: str = "console") -> None:
    """Set up the logs of a process, on standard error; its entry point calls it once."""
    shared_steps: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        lambda _logger, _method, event: {"service": service, **event},
    ]
    for_people = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        sort_keys=False,
        exception_formatter=structlog.dev.plain_traceback,  # without local variables, which may hold secrets
    )
    rendering: list[structlog.types.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()] if form == "json" else [for_people]
    )
    structlog.configure(
        processors=[*shared_steps, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # looked up now, as tests replace it
        cache_logger_on_first_use=False,
    )
    others = logging.StreamHandler(sys.stderr)  # logs of libraries, in the same format
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    others.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared_steps, processors=[without_meta, *rendering])
    )
    logging.basicConfig(level=logging.WARNING, handlers=[others])
    set_on_retry_hooks([_log_retry])


def _log_retry(details: RetryDetails) -> None:
    """Log the reason of a retry; stamina's own line names only the callable."""
    wait_s = round(details.wait_for, 2)
    structlog.get_logger(__name__).warning("retrying", error=str(details.caused_by), wait_s=wait_s)
