"""Reads instance counts written as COUNTxTP[,COUNTxTP...]."""

import re

from shared.errors import BadInput


def read_instance_counts(text: str, option: str) -> tuple[int, ...]:
    """The TP degree of each instance: `2x1,1x4` is two TP-1 instances and one TP-4 instance.

    Raises: BadInput naming the option if the text is malformed.
    """
    degrees: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([1-9]\d{0,3})x([1-9]\d{0,3})\s*", part)
        if match is None:
            raise BadInput(f"{option} {text}: accepted is COUNTxTP[,COUNTxTP...], such as 2x1 or 2x1,1x4")
        degrees += [int(match[2])] * int(match[1])
    return tuple(degrees)
