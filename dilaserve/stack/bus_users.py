"""The users of a NATS server's configuration, and their URLs."""

import json
import secrets
from collections.abc import Mapping

from shared.bus.users import BusUser, permissions

PASSWORD_BYTES = 24


def new_passwords() -> dict[BusUser, str]:
    """A random password for each user."""
    return {user: secrets.token_hex(PASSWORD_BYTES) for user in BusUser}


def authorization(cell: str, passwords: Mapping[BusUser, str]) -> str:
    """The section of the server's configuration that declares the users of a cell.

    `passwords` are values as NATS writes them: a quoted text, or $NAME for a variable of the server's environment.
    """
    users = [
        f"    {{\n      user: {user}\n      password: {passwords[user]}\n      permissions: {{\n"
        f"        publish: {_subjects(allowed.publish)}\n        subscribe: {_subjects(allowed.subscribe)}\n"
        "      }\n    }\n"
        for user, allowed in permissions(cell).items()
    ]
    return f"authorization {{\n  users: [\n{''.join(users)}  ]\n}}\n"


def user_url(user: BusUser, password: str, address: str) -> str:
    """The URL with which a user reaches the server at HOST:PORT."""
    return f"nats://{user}:{password}@{address}"


def _subjects(allowed: tuple[str, ...]) -> str:
    lines = "".join(f"          {json.dumps(subject)}\n" for subject in allowed)
    return f"[\n{lines}        ]"
