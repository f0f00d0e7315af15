"""Log lines on standard error."""

import json
import subprocess
import sys

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
