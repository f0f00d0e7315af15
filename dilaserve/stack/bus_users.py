"""The users of a NATS server's configuration, and their URLs."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from shared.bus.subjects import Subjects
from shared.bus.users import BusUser, Permissions, permissions

PASSWORD_BYTES = 24


def new_passwords(producers: Iterable[str] = ()) -> dict[str, str]:
    return {user: secrets.token_hex(PASSWORD_BYTES) for user in (*BusUser, *producers)}


def authorization(cell: str, passwords: Mapping[str, str], more_cells: Sequence[str] = ()) -> str:
    """The section of the server's configuration that declares the users of a cell, or of several cells together, by
    name; others than a BusUser are named producers.

    `passwords` are values as NATS writes them: a quoted text, or $NAME for a variable of the server's environment.
    """
    allowed = permissions(cell, passwords.keys() - set(BusUser), more_cells)
    users = "".join(_user(user, password, allowed[user]) for user, password in passwords.items())
    return f"authorization {{\n  users: [\n{users}  ]\n}}\n"


def server_users(cell: str, producers: Iterable[str] = (), more_cells: Sequence[str] = ()) -> str:
    """The same for a server that `dilaserve up` does not start, with passwords from its environment. For several cells
    also the mapping of `dilaserve.requests` to their subjects."""
    users = [user for user in BusUser if user != BusUser.SUPERVISOR]  # of `dilaserve up`
    passwords = {user: f"${password_variable(user)}" for user in (*users, *producers)}
    return authorization(cell, passwords, more_cells) + (request_mappings([cell, *more_cells]) if more_cells else "")


def request_mappings(cells: Sequence[str]) -> str:
    """The section that maps each message on `dilaserve.requests`, or below it for a named producer, to one of the
    cells, with equal weights."""
    ends = [100 * i // len(cells) for i in range(len(cells) + 1)]
    weights = [end - start for start, end in pairwise(ends)]  # their sum must be 100
    text = ""
    for source, rest in (("dilaserve.requests", ""), ("dilaserve.requests.*", ".{{wildcard(1)}}")):
        targets = "".join(
            f"    {{destination: {json.dumps(Subjects(cell).requests + rest)}, weight: {weight}%}}\n"
            for cell, weight in zip(cells, weights, strict=True)
        )
        text += f"  {json.dumps(source)}: [\n{targets}  ]\n"
    return f"mappings {{\n{text}}}\n"


def password_variable(user: str) -> str:
    """The variable of the server's environment that holds a user's password."""
    return f"NATS_{user.upper()}_PASSWORD"


def user_url(user: str, password: str, address: str) -> str:
    """The URL with which a user reaches the server at HOST:PORT."""
    return f"nats://{user}:{password}@{address}"


def _user(user: str, password: str, allowed: Permissions) -> str:
    return (
        f"    {{\n      user: {user}\n      password: {password}\n      permissions: {{\n"
        f"        publish: {_subjects(allowed.publish)}\n        subscribe: {_subjects(allowed.subscribe)}\n"
        "      }\n    }\n"
    )


def _subjects(allowed: tuple[str, ...]) -> str:
    lines = "".join(f"          {json.dumps(subject)}\n" for subject in allowed)
    return f"[\n{lines}        ]"
