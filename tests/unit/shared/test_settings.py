"""Settings from the environment."""

import pytest

from shared.errors import BadInput
from shared.settings import Positive, ServiceSettings, read_settings, to_environ


class Example(ServiceSettings, frozen=True, kw_only=True):
    count: Positive = 1
    names: tuple[str, ...] = ("a",)
    ratios: tuple[float, ...] = ()
    on: bool = False


def test_fields_are_read_from_their_variables_and_others_ignored() -> None:
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
        ("NATS_URL", "nats://127.0.0.1:port", "nats"),
        ("NATS_URL", "http://127.0.0.1:4222", "nats"),
        ("RATIOS", "0.5,x", "float"),
    ],
)
def test_a_wrong_value_names_variable_value_and_what_is_accepted(variable: str, value: str, accepted: str) -> None:
    with pytest.raises(BadInput, match=accepted) as raised:
        read_settings(Example, {f"DILASERVE_{variable}": value})
    assert raised.value.message.startswith(f"DILASERVE_{variable}={value!r}:")


@pytest.mark.parametrize(
    "url",
    ["nats://nats", "localhost:4222", "tls://me:s3cret@[::1]:4222/", "nats://token@a.b-c.d:1", "nats://me:p@ss@nats"],
)
def test_whatever_nats_calls_a_url_is_taken(url: str) -> None:
    assert read_settings(Example, {"DILASERVE_NATS_URL": url}).nats_url == url


def test_settings_survive_the_environment_of_another_process() -> None:
    settings = {"count": 2, "names": ("x", "y"), "on": True}
    environ = to_environ({**settings, "unset": None})
    assert read_settings(Example, environ) == Example(count=2, names=("x", "y"), on=True)
