"""Compares the pinned packages with known vulnerabilities (`make audit`).

Exit status: 1 if there is a vulnerability, 3 if not all packages were checked.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

COMMAND = ("pip-audit", "--vulnerability-service", "osv", "--no-deps", "--disable-pip", "--format", "json")
LOCK = "requirements.lock"  # contains the packages of the images too


def main(uvx: Annotated[Path, typer.Argument(help="The program `uvx`, which runs pip-audit.")]) -> None:
    """Run pip-audit in an environment of its own."""
    command = [str(uvx), *COMMAND, "--requirement", LOCK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines, status = read_audit(done.stdout, done.stderr)
    typer.echo("\n".join(lines))
    raise typer.Exit(status)


def read_audit(output: str, errors: str) -> tuple[Sequence[str], int]:
    """The lines of the report and the exit status, from pip-audit's JSON and its error messages."""
    try:
        packages: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, LookupError):
        last_line = (errors.strip().splitlines() or ["no message"])[-1]
        return [f"NOT CHECKED: no advisory service can be reached: {last_line}"], 3
    skipped = [f"NOT CHECKED: {one['name']}: {one['skip_reason']}" for one in packages if "skip_reason" in one]
    found = [
        f"{one['name']} {one['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version'}"
        for one in packages
        for flaw in one.get("vulns", [])
    ]
    lines = [*found, *skipped] or [f"no known vulnerability in {len(packages)} packages"]
    return lines, 1 if found else 3 if skipped else 0


if __name__ == "__main__":
    typer.run(main)
