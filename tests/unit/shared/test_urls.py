"""Addresses of servers in messages: without their secrets; several in one text; the host of a URL."""

import pytest

from shared.urls import server_urls, url_host, without_credentials


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


@pytest.mark.parametrize(("host", "written"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("node-1", "node-1")])
def test_a_url_has_an_ipv6_address_in_brackets(host: str, written: str) -> None:
    assert url_host(host) == written
