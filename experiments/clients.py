"""Public clients, unchanged, against one embedded stack: which of their calls are served.

python -m experiments.clients --only openai_python,langchain

Each program of tests/clients/ runs in its own environment below build/clients/, which is made again if its packages
change. The clients find the stack by OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and
ANTHROPIC_API_KEY, as they find the servers of OpenAI and Anthropic.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer

from experiments.live_cluster import live_cluster
from experiments.report import RESULTS, Report

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests/clients"
ENVIRONMENTS = ROOT / "build/clients"
PYTEST = "pytest==9.1.1"
WITHOUT_TORCH = "torch<0"  # a client that needs torch is not installed
LIMIT_S = 300.0  # of one program
# The model answers in JSON and calls tools. With one threshold, a reply's text is independent of other requests.
OPTIONS = ("--model", ROOT / "models/demo-block", "--instances", "1x1", "--policy", "fixed", "--thresholds", "0.9")
OTHERS = (
    "`tests/integration/gateway/test_clients.py` tests curl and guidellm, and sends the bodies of two clients that do "
    "not run: those of `vllm bench serve`, and of Open WebUI 0.12.4 (chats; titles, tags and follow-up questions), as "
    "their sources build them. guidellm, vLLM and Open WebUI need torch, so they are not installed here. `make schema` "
    "runs schemathesis."
)
COLUMNS = ("client", "packages", "passed", "not served, as expected", "failed", "command")


@dataclass(slots=True)
class ClientTests:
    """The tests of one client, by their result; a test that did not pass has its reason."""

    passed: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def sorted_by_result(junit: str) -> ClientTests:
    """Read the report of pytest or of node:test in JUnit's XML. Raises: ParseError if it is not one.

    A test that is marked as not served (pytest's xfail, node's todo) must fail: one that passes needs its mark removed.
    """
    outcome = ClientTests()
    for case in ElementTree.fromstring(junit).iter("testcase"):  # noqa: S314  (written by our own run of the tests)
        name = case.get("name", "").removeprefix("test_").replace("_", " ")
        mark = case.find("skipped")
        failure = next((found for found in case if found.tag in {"failure", "error"}), None)
        reason = "" if failure is None else first_line(failure.get("message") or failure.text or "")
        if mark is None and failure is None:
            outcome.passed.append(name)
        elif mark is None:
            outcome.failed.append(f"{name}: {reason}")
        elif mark.get("type") == "pytest.xfail":
            outcome.expected.append(f"{name}: {mark.get('message')}")
        elif failure is not None:
            outcome.expected.append(f"{name}: {mark.get('message')} ({reason})")
        else:
            outcome.failed.append(f"{name}: it passes, or was skipped, but is marked: {mark.get('message')}")
    return outcome


def first_line(text: str) -> str:
    """The first line that is not empty, short enough for a table's cell."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return line.replace("|", "\\|")[:200]


def install(program: Path, packages: Sequence[str]) -> Path:
    """Make the program's environment, unless one with these packages exists. Returns: its folder.

    Raises: RuntimeError if the packages cannot be installed.
    """
    folder, ready = ENVIRONMENTS / program.stem, ENVIRONMENTS / program.stem / "installed"
    wanted = " ".join(packages)
    if ready.exists() and ready.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if program.suffix == ".mjs":
        _run(["npm", "install", "--silent", "--prefix", folder, *packages])
    else:
        constraints = folder / "constraints.txt"
        constraints.write_text(WITHOUT_TORCH)
        _run([sys.executable, "-m", "venv", folder])
        _run([folder / "bin/pip", "install", "--quiet", "--constraint", constraints, PYTEST, *packages])
    ready.write_text(wanted)
    return folder


def _run(command: Sequence[object]) -> None:
    try:
        ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RuntimeError(f"{command[0]} is not installed") from error
    if ended.returncode:
        raise RuntimeError(first_line(next((s for s in reversed((ended.stdout + ended.stderr).splitlines()) if s), "")))


def run(program: Path, folder: Path, url: str) -> ClientTests:
    """Run the program's tests against the gateway at this URL."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "junit.xml"
        if program.suffix == ".mjs":
            shutil.copy(program, folder)  # Node.js looks for packages beside the program
            reporter = ("--test-reporter=junit", f"--test-reporter-destination={report}")
            command: list[object] = ["node", "--test", *reporter, folder / program.name]
        else:
            options = ("-c", os.devnull, "--rootdir", ROOT, "--noconftest", "--import-mode=importlib")
            command = [folder / "bin/python", "-P", "-m", "pytest", "-p", "no:cacheprovider", "-o", "xfail_strict=true"]
            command += [*options, f"--junitxml={report}", program]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any"}
        environ |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "any"}
        try:
            subprocess.run(
                list(map(str, command)), cwd=folder, env=environ, capture_output=True, timeout=LIMIT_S, check=False
            )
            return sorted_by_result(report.read_text())
        except (subprocess.TimeoutExpired, OSError, ElementTree.ParseError) as error:
            return ClientTests(failed=[f"the program: {first_line(str(error))}"])


def chosen(packages: Mapping[str, Sequence[str]], only: str) -> list[str]:
    """The clients to run. Raises: BadParameter for one that does not exist."""
    names = [name for name in only.split(",") if name] or list(packages)
    if unknown := set(names) - set(packages):
        raise typer.BadParameter(f"no client {', '.join(sorted(unknown))}; the clients are {', '.join(packages)}")
    return names


def main(
    *,
    only: Annotated[str, typer.Option(help="Clients, comma-separated; the report is then only printed.")] = "",
    out: Annotated[Path, typer.Option(help="File of the report.")] = RESULTS / "clients.md",
) -> None:
    """Install the clients, start a stack, run them, and print the table. Exit status 1: a client failed."""
    packages: dict[str, list[str]] = tomllib.loads((PROGRAMS / "packages.toml").read_text())
    names = chosen(packages, only)
    report, failed = Report("Public clients, unchanged", OTHERS), False
    report.add_columns(*COLUMNS)
    with live_cluster(*OPTIONS) as cluster:
        for name in names:
            program = next(PROGRAMS.glob(f"{name}.*"))
            try:
                outcome = run(program, install(program, packages[name]), cluster.url)
            except RuntimeError as error:
                outcome = ClientTests(failed=[f"not installed: {error}"])
            failed |= bool(outcome.failed)
            command = f"`make clients ARGS='--only {name}'`"
            cells = ("; ".join(found) or "-" for found in (outcome.passed, outcome.expected, outcome.failed))
            report.add_row(name, ", ".join(packages[name]), *cells, command)
    if not only:
        report.write(out)
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
