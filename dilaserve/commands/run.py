"""`dilaserve run`: one service in this process."""

import os
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from dilaserve.stack.packages import PACKAGES
from shared.errors import BadInput

EXAMPLE = "Example: DILASERVE_NATS_URL=nats://127.0.0.1:4222 DILASERVE_MODEL=models/demo dilaserve run worker"


def run(
    service: Annotated[str, typer.Argument(help=f"One of {', '.join(PACKAGES)}.")],
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the service's version.")] = False,
) -> None:
    """Run one service, with its settings from DILASERVE_* (see services/SERVICE/README.md)."""
    if service not in PACKAGES:
        raise BadInput(f"no service {service}; accepted: {', '.join(PACKAGES)}")
    if missing := [package for package in PACKAGES[service] if find_spec(package) is None]:
        raise BadInput(f"{service} needs {', '.join(missing)}: pip install --editable '.[{service}]'")
    sys.stdout.flush()
    # The service replaces this process, so that it receives its signals and sets its exit status.
    arguments = ["--version"] if version else []
    os.execv(sys.executable, [sys.executable, "-m", f"services.{service}", *arguments])  # noqa: S606
