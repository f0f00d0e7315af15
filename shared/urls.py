"""Addresses of servers: without their secrets for messages and logs; several in one text; the host of a URL."""

import re

CREDENTIALS = re.compile(r"(^|//)[^/?#]*@")  # up to the last @ of the part before the path; NATS needs no scheme
NEXT_SERVER = re.compile(r",(?=(?:nats|tls)://)")  # a comma may also be in a password
PASSWORD_OPTION = re.compile(r"(?<=[?&]password=)[^&#]*")


def without_credentials(url: str) -> str:
    """`url`, or several URLs with commas between them, without user names and passwords."""
    return PASSWORD_OPTION.sub("***", CREDENTIALS.sub(r"\1", url))


def server_urls(urls: str) -> list[str]:
    """The URLs in a text with commas between them, each with its scheme; a single one may lack it."""
    return NEXT_SERVER.split(urls)


def url_host(host: str) -> str:
    """A host as it is written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
