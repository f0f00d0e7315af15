"""`dilaserve run`: one service in this process."""

from typing import Annotated

import typer

from shared.errors import BadInput

EXAMPLE = "Example: DILASERVE_NATS_URL=nats://127.0.0.1:4222 DILASERVE_MODEL=models/demo dilaserve run worker"
SERVICES = ("gateway", "scheduler", "predictor", "reconfigurator", "worker")


def run(service: Annotated[str, typer.Argument(help=f"One of {', '.join(SERVICES)}.")]) -> None:
    """Run one service, with its settings from DILASERVE_* (see services/SERVICE/README.md)."""
    import os  # noqa: PLC0415
    import sys  # noqa: PLC0415
    from importlib.util import find_spec  # noqa: PLC0415

    if service not in SERVICES:
        raise BadInput(f"no service {service}; accepted: {', '.join(SERVICES)}")
    if missing := [package for package in _needs(service) if find_spec(package) is None]:
        raise BadInput(f"{service} needs {', '.join(missing)}: pip install 'dilaserve[{service}]'")
    sys.stdout.flush()
    # The service takes this process over, so that signals and the exit status are its own.
    os.execv(sys.executable, [sys.executable, "-m", f"services.{service}"])  # noqa: S606


def _needs(service: str) -> tuple[str, ...]:
    """Packages that the service's group brings and no other does for sure."""
    return {
        "gateway": ("fastapi", "uvicorn", "transformers"),
        "scheduler": ("transformers",),
        "predictor": ("lightgbm",),
        "worker": ("torch", "safetensors"),
        "reconfigurator": ("sqlalchemy", "asyncpg", "alembic"),
    }[service]
