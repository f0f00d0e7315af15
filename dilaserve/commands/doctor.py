"""`dilaserve doctor`: finds problems of an installation or a running stack, and their fixes."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Column, Table

from dilaserve.outputs import open_console
from dilaserve.stack import checks
from dilaserve.stack.checks import Finding
from shared.logs import configure_logs

EXAMPLE = "Example: dilaserve doctor --model models/demo --port 8000"


def doctor(
    *,
    data_dir: Annotated[Path, typer.Option(help="Data directory of a stack on this machine.")] = Path(".data"),
    model: Annotated[
        str | None,
        typer.Option(help="Checkpoint directory or hub id.", show_default="the running stack's, or the demo model"),
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="PROFILE.csv to check.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the REST API.")] = 8000,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check packages, servers, ports, model, profile and a running stack, and suggest fixes.

    Exits with 1 if it finds a problem.
    """
    configure_logs("doctor", level="error")
    found = checks.machine(os.environ)
    if checks.container_service(os.environ) is None:
        found += [checks.nats_binary(), checks.disk(data_dir)]
    else:
        found += checks.bus_disk(os.environ)
    found += [
        checks.model(model or checks.running_model(data_dir)),
        checks.profile(profile),
        *asyncio.run(checks.stack(data_dir, port, os.environ)),
    ]
    if json:
        typer.echo(msgspec.json.encode({"ok": all(finding.ok for finding in found), "findings": found}))
    else:
        _print(found)
    if not all(finding.ok for finding in found):
        raise typer.Exit(1)


def _print(found: list[Finding]) -> None:
    table = Table(*(Column(overflow="fold") for _ in range(3)), box=None, show_header=False)  # whole paths
    for finding in found:
        state = "[green]ok[/]" if finding.ok else "[red]wrong[/]"
        table.add_row(state, escape(finding.subject), escape(finding.detail))
        if finding.fix:
            table.add_row("", "", f"[bold]fix:[/] {escape(finding.fix)}")
    open_console().print(table)
