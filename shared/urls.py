"""Addresses of servers: without their secrets for messages and logs; several in one text; the host of a URL."""

import re
from ipaddress import ip_address

LOOPBACK_NAME = "localhost"
NEXT_SERVER = re.compile(r",(?=(?:nats|tls)://)")  # a comma may also be in a password
SCHEME = re.compile(r"(?:nats|tls|https?|wss?|postgres(?:ql)?(?:\+\w+)?)://")  # NATS needs none
# Of a server, with a path or options
ADDRESS = re.compile(r"(?:[\w.*-]*|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?(?:[/?][^\s@]*)?")
PASSWORD_OPTION = re.compile(r"(?<=[?&]password=).*", re.DOTALL)


def without_credentials(url: str) -> str:
    """`url`, or several URLs with commas between them, without user names and passwords.

    A password may have any character, so each URL is cut at its last @. A rest that is no address is hidden whole, and
    so is a URL without an @ beside others that have one.
    """
    url = PASSWORD_OPTION.sub("***", url)
    if "@" not in url:
        return url
    return ",".join(_shown(each) if "@" in each else "***" for each in server_urls(url))


def _shown(url: str) -> str:
    found = SCHEME.match(url)
    scheme = found[0] if found else ""
    address = url.removeprefix(scheme).rpartition("@")[2]
    return scheme + (address if ADDRESS.fullmatch(address) else "***")


def server_urls(urls: str) -> list[str]:
    """The URLs in a text with commas between them, each with its scheme; a single one may lack it."""
    return NEXT_SERVER.split(urls)


def url_host(host: str) -> str:
    """A host as it is written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == LOOPBACK_NAME or ip_address(host).is_loopback
    except ValueError:
        return False
