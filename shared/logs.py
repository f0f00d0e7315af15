"""Structured logs: one event with named values per line, as text for people or JSON for collectors.

`structlog.contextvars.bound_contextvars(request_id=…)` adds a request's id to every line within.
"""

import logging
import sys
import time
from collections.abc import Callable

import structlog
from stamina.instrumentation import RetryDetails, set_on_retry_hooks

from shared.errors import NotCreated

REPEAT_S = 10.0  # time after which the reason of a retry is logged again
CREATION_S = 5.0  # time that a service may wait without a warning for what another one creates at its start


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
    set_on_retry_hooks([RetryLog().log])


class RetryLog:
    """Logs the reasons of retries, each at most once per REPEAT_S: in an outage hundreds of requests are retried."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock  # seconds
        self._logged_s: dict[str, float] = {}  # by reason, the earliest first

    def log(self, details: RetryDetails) -> None:
        """Log the reason of a retry; stamina's own line names only the callable."""
        error, now_s = str(details.caused_by), self._clock()
        if isinstance(details.caused_by, NotCreated) and details.waited_so_far < CREATION_S:
            structlog.get_logger(__name__).debug("waiting", error=error)
            return
        while self._logged_s and self._logged_s[first := next(iter(self._logged_s))] <= now_s - REPEAT_S:
            del self._logged_s[first]
        if error not in self._logged_s:
            self._logged_s[error] = now_s
            structlog.get_logger(__name__).warning("retrying", error=error, wait_s=round(details.wait_for, 2))
