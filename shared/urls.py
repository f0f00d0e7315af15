"""Addresses without their secrets, for messages and logs."""

import re

CREDENTIALS = re.compile(r"(^|//)[^/?#]*@")  # up to the last @ of the part before the path; NATS needs no scheme
PASSWORD_OPTION = re.compile(r"(?<=[?&]password=)[^&#]*")


def without_credentials(url: str) -> str:
    """`url`, or several URLs with commas between them, without user names and passwords."""
    return PASSWORD_OPTION.sub("***", CREDENTIALS.sub(r"\1", url))
