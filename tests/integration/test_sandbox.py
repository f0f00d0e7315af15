"""Limits of a program that a model wrote."""

import socket

import pytest

from dilaserve.quality import sandbox
from dilaserve.quality.sandbox import isolation, passes


@pytest.mark.parametrize(
    ("program", "tests", "passed"),
    [
        ("def f(x):\n    return x + 1", "assert f(1) == 2", True),
        ("import math, re, collections, heapq", "assert math.sqrt(4) == 2", True),
        ("print('x' * 10**7)", "", True),
        ("def f(x):\n    return x", "assert f(1) == 2", False),
        ("def f(x) return", "", False),
        ("import sys; sys.exit(0)", "assert False", False),
        ("import os; os._exit(0)", "assert False", False),
        ("x = bytearray(1 << 30)", "", False),  # more memory than it may have
    ],
)
def test_only_a_program_that_completes_its_tests_passes(program: str, tests: str, passed: bool) -> None:
    assert passes(program, tests) == passed


def test_a_program_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CPU_S", 1)
    assert not passes("while True: pass", "")


def test_a_program_has_no_network() -> None:
    if not isolation().no_network:
        pytest.skip("this system permits no network namespace")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not passes(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)", "")
