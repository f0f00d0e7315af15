"""A service stops soon although its collector of traces does not answer."""

import socket
import subprocess
import sys
import time

import pytest

from tests.support.services import ROOT

STOP = """
from opentelemetry import trace
from shared.telemetry import telemetry
import sys, time
with telemetry("test", sys.argv[1]):
    trace.get_tracer("test").start_span("step").end()
    print(time.time(), flush=True)
"""


@pytest.mark.slow
def test_a_silent_collector_delays_a_stop_by_at_most_two_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = subprocess.run(
            [sys.executable, "-c", STOP, endpoint], cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=20
        ).stdout
        assert 1 < time.time() - float(began) < 3  # the exporter waited, and the process has ended
