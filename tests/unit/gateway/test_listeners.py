"""The addresses of a gateway in its messages."""

import pytest

from services.gateway.listeners import url_host


@pytest.mark.parametrize(("host", "written"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("node-1", "node-1")])
def test_a_url_has_an_ipv6_address_in_brackets(host: str, written: str) -> None:
    assert url_host(host) == written
