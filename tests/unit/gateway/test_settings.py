"""The settings of the gateway that name hosts and web sites."""

import pytest

from services.gateway.settings import GatewaySettings
from shared.errors import BadInput
from shared.settings import read_settings


def test_hosts_and_origins_are_lists() -> None:
    environ = {"DILASERVE_ALLOWED_HOSTS": "api.example, localhost", "DILASERVE_ALLOWED_ORIGINS": "https://a.example:1"}
    settings = read_settings(GatewaySettings, {"DILASERVE_MODEL": "demo", **environ})
    assert settings.allowed_hosts == ("api.example", "localhost")
    assert settings.allowed_origins == ("https://a.example:1",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DILASERVE_ALLOWED_HOSTS", "https://api.example"),
        ("DILASERVE_ALLOWED_HOSTS", "api.example:8000"),
        ("DILASERVE_ALLOWED_ORIGINS", "app.example"),
        ("DILASERVE_ALLOWED_ORIGINS", "https://app.example/"),
    ],
)
def test_a_value_that_no_request_could_match_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=name):
        read_settings(GatewaySettings, {"DILASERVE_MODEL": "demo", name: value})
