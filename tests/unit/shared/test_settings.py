"""Settings from the environment."""

from typing import Literal

import pytest

from shared.errors import BadInput
from shared.settings import Positive, ServiceSettings, check_nats_url, read_settings, to_environ


class Example(ServiceSettings, frozen=True, kw_only=True):
    count: Positive = 1
    names: tuple[str, ...] = ("a",)
    ratios: tuple[float, ...] = ()
    on: bool = False
    color: Literal["red", "blue"] = "red"


def test_fields_are_read_from_their_variables_and_others_are_ignored() -> None:
    environ = {
        "DILASERVE_COUNT": "3",
        "DILASERVE_RATIOS": "0.5, 0.9",
        "DILASERVE_ON": "true",
        "HOME": "/",
        "COUNT": "9",
    }
    assert read_settings(Example, environ) == Example(count=3, ratios=(0.5, 0.9), on=True)


@pytest.mark.parametrize(
    ("variable", "value", "accepted"),
    [
        ("COUNT", "0", ">= 1"),
        ("COUNT", "many", "int"),
        ("CELL", "No Spaces", "matching regex"),
        ("NATS_URL", "nats://127.0.0.1/path", "accepted: nats://HOST:PORT"),
        ("NATS_URL", "http://127.0.0.1:4222", "accepted: nats://HOST:PORT"),
        ("RATIOS", "0.5,x", "float"),
        ("COLOR", "green", "accepted: blue, red"),
    ],
)
def test_an_invalid_value_reports_variable_value_and_accepted_values(variable: str, value: str, accepted: str) -> None:
    with pytest.raises(BadInput, match=accepted) as raised:
        read_settings(Example, {f"DILASERVE_{variable}": value})
    assert raised.value.message.startswith(f"DILASERVE_{variable}={value!r}:")


@pytest.mark.parametrize(
    "url",
    [
        *("nats://nats", "localhost:4222", "tls://me:s3cret@[::1]:4222/", "nats://token@a.b-c.d:1"),
        *("nats://me:p@ss@nats", "nats://me:a,b@nats", "nats://me:p@a:1,nats://me:p@b:2"),
        "tls://me:p@a,tls://me:p@b",
    ],
)
def test_every_url_that_nats_accepts_is_accepted(url: str) -> None:
    assert read_settings(Example, {"DILASERVE_NATS_URL": url}).nats_url == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:s3cret@127.0.0.1:4222", "http://127.0.0.1:4222"),
        ("nats://me:s3cret@127.0.0.1:port", "nats://***"),
        ("nats://me:s3cret/x@127.0.0.1", "nats://127.0.0.1"),
        ("me:s3cret@a b", "***"),
        ("nats://me:s3cret@a,me:s3cret@b,c", "nats://***"),
        ("nats://me:s3cret@a,tls://me:s3cret@b", "nats://a,tls://b"),
    ],
)
def test_the_error_of_a_nats_url_shows_no_password(url: str, shown: str) -> None:
    with pytest.raises(BadInput) as raised:
        read_settings(Example, {"DILASERVE_NATS_URL": url})
    assert raised.value.message.startswith(f"DILASERVE_NATS_URL={shown!r}: not the URL of a NATS server; accepted: ")
    with pytest.raises(BadInput) as raised:
        check_nats_url(url, "--nats-url")
    assert raised.value.message.startswith(f"--nats-url={shown!r}: ")


def test_to_environ_is_the_inverse_of_read_settings() -> None:
    settings = {"count": 2, "names": ("x", "y"), "on": True}
    environ = to_environ({**settings, "unset": None})
    assert read_settings(Example, environ) == Example(count=2, names=("x", "y"), on=True)
