"""Addresses without their secrets, users of the bus, its errors as the project's own, and log lines."""

import json
import subprocess
import sys

import pytest
from nats.js.errors import APIError, BucketNotFoundError, KeyNotFoundError
from stamina.instrumentation import RetryDetails
from structlog.testing import capture_logs

from shared.bus.errors import NOT_STORED, bus_errors
from shared.bus.users import inbox_prefix, read_producers
from shared.errors import BadInput, NotCreated, RetryLater, StorageFull
from shared.logs import CREATION_S, REPEAT_S, RetryLog
from shared.urls import server_urls, without_credentials


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://gateway:secret@host:4222", "nats://host:4222"),
        ("gateway:secret@host:4222", "host:4222"),
        ("nats://token@host:4222", "nats://host:4222"),
        ("nats://a:secret@h1,nats://b:secret@h2:4222", "nats://h1,nats://h2:4222"),
        ("nats://a:se,cr@et@host", "nats://host"),
        ("postgresql+asyncpg://me:secret@/name?host=/run/a", "postgresql+asyncpg:///name?host=/run/a"),
        ("postgresql://host/name?user=me&password=secret&ssl=1", "postgresql://host/name?user=me&password=***"),
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://me:secret@127.0.0.1:port", "nats://***"),
        ("me:secret@a b", "***"),
        ("nats://me:secret@a,me:secret@b,c", "nats://***"),
    ],
)
def test_a_url_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


@pytest.mark.parametrize(
    ("urls", "each"),
    [
        ("host:4222", ["host:4222"]),
        ("nats://a:p@h1:1,nats://a:p@h2:2", ["nats://a:p@h1:1", "nats://a:p@h2:2"]),
        ("tls://a:p,q@h1,tls://a:p,q@h2", ["tls://a:p,q@h1", "tls://a:p,q@h2"]),
    ],
)
def test_a_list_is_split_between_servers_and_not_within_passwords(urls: str, each: list[str]) -> None:
    assert server_urls(urls) == each


@pytest.mark.parametrize(
    "text", ["Alice", "a.b", "a*", ">", "1a", "a-b", "a,", ",", "a b", "a" * 33, "gateway", "a,b,a"]
)
def test_an_invalid_taken_or_repeated_name_of_a_producer_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--producers"):
        read_producers(text)


def test_names_of_producers_are_a_list() -> None:
    assert read_producers("alice, team_2") == ("alice", "team_2")
    assert read_producers("") == ()


@pytest.mark.parametrize("url", ["nats://h:4222", "h", "nats://someone:secret@h:4222", "[::1]:4222"])
def test_a_connection_of_another_user_has_the_default_inboxes(url: str) -> None:
    assert inbox_prefix(url) == "_INBOX"
    assert inbox_prefix("worker:secret@h:4222") == "_INBOX_worker"  # it needs no scheme


def test_an_error_without_a_code_asks_for_a_retry() -> None:
    with pytest.raises(RetryLater, match="cannot take the lease"), bus_errors("take the lease"):
        raise KeyNotFoundError


def test_a_bucket_that_does_not_exist_may_be_created_later() -> None:
    with pytest.raises(NotCreated, match="cannot open the bucket"), bus_errors("open the bucket"):
        raise BucketNotFoundError


@pytest.mark.parametrize("unit", ["messages", "bytes"])
def test_a_stream_at_a_limit_is_full(unit: str) -> None:
    error = APIError(code=503, err_code=NOT_STORED, description=f"maximum {unit} exceeded")
    with pytest.raises(StorageFull, match=f"cannot store: the bus stores as many {unit} there"), bus_errors("store"):
        raise error


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


def retry_after(error: Exception, waited_s: float = 0.0) -> RetryDetails:
    return RetryDetails("f", (), {}, retry_num=1, wait_for=2.0, waited_so_far=waited_s, caused_by=error)


def test_the_same_reason_of_many_retries_is_logged_once_in_a_while() -> None:
    now_s = 0.0
    retries = RetryLog(clock=lambda: now_s)
    with capture_logs() as logs:
        for now_s in (0.0, 2.0, REPEAT_S - 0.1, REPEAT_S, REPEAT_S + 2.0):
            for _ in range(256):
                retries.log(retry_after(RetryLater("the bus is not connected")))
            retries.log(retry_after(RetryLater(f"cannot store at {now_s}")))
    assert [line["error"] for line in logs].count("the bus is not connected") == 2
    assert len(logs) == 2 + 5


def test_a_missing_bucket_is_a_warning_only_after_some_seconds() -> None:
    with capture_logs() as logs:
        for waited_s in (0.0, CREATION_S - 0.1, CREATION_S):
            RetryLog().log(retry_after(NotCreated("no bucket"), waited_s))
    assert [line["log_level"] for line in logs] == ["debug", "debug", "warning"]
