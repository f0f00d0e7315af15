"""Log lines on standard error."""

import json
import subprocess
import sys

from stamina.instrumentation import RetryDetails
from structlog.testing import capture_logs

from shared.errors import NotCreated, RetryLater
from shared.logs import CREATION_S, REPEAT_S, RetryLog

PROGRAM = """
import logging
import structlog
from shared.logs import configure_logs

configure_logs("gateway", form="json")
structlog.get_logger().info("listening", port=1)
logging.getLogger("uvicorn.error").warning("of a library, %s lines", "two\\n")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("uvicorn.error").exception("with its traceback")
"""


def test_in_json_format_every_line_is_json_including_those_of_libraries() -> None:
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    ).stderr
    lines = [json.loads(line) for line in output.splitlines()]
    assert [(line["service"], line["level"]) for line in lines] == [
        ("gateway", "info"),
        ("gateway", "warning"),
        ("gateway", "error"),
    ]
    assert "ZeroDivisionError" in lines[2]["exception"]


def retry_because(reason: str) -> RetryDetails:
    return RetryDetails(
        name="f", args=(), kwargs={}, retry_num=1, wait_for=2.0, waited_so_far=0.0, caused_by=RetryLater(reason)
    )


def test_the_same_reason_of_many_retries_is_logged_once_in_a_while() -> None:
    now_s = 0.0
    retries = RetryLog(clock=lambda: now_s)
    with capture_logs() as logs:
        for now_s in (0.0, 2.0, REPEAT_S - 0.1, REPEAT_S, REPEAT_S + 2.0):
            for _ in range(256):
                retries.log(retry_because("the bus is not connected"))
            retries.log(retry_because(f"cannot store at {now_s}"))
    assert [line["error"] for line in logs].count("the bus is not connected") == 2
    assert len(logs) == 2 + 5


def test_a_missing_bucket_is_a_warning_only_after_some_seconds() -> None:
    with capture_logs() as logs:
        for waited_s in (0.0, CREATION_S - 0.1, CREATION_S):
            details = RetryDetails(
                name="f",
                args=(),
                kwargs={},
                retry_num=1,
                wait_for=0.1,
                waited_so_far=waited_s,
                caused_by=NotCreated("no bucket"),
            )
            RetryLog().log(details)
    assert [line["log_level"] for line in logs] == ["debug", "debug", "warning"]
