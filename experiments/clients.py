"""Public clients, unchanged, against one embedded stack: which of their calls are served.

python -m experiments.clients --only openai_python,langchain

Each client runs in its own environment below build/clients/, which is made again if its packages change. The clients
find the stack by OPENAI_BASE_URL and OPENAI_API_KEY, or ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, as they find the
servers of OpenAI and Anthropic.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

import typer

from experiments.live_cluster import live_cluster
from experiments.report import RESULTS, Report

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests/clients"
ENVIRONMENTS = ROOT / "build/clients"
PYTEST = "pytest==9.1.1"
WITHOUT_TORCH = "torch<0"  # a client that needs torch is not installed
OF_ANOTHER = "test name does not match pattern"  # Node.js's mark of a test of another client
LIMIT_S = 300.0  # of one program
# The model answers in JSON and calls tools. With one threshold, a reply's text is independent of other requests.
OPTIONS = ("--model", ROOT / "models/demo-block", "--instances", "1x1", "--policy", "fixed", "--thresholds", "0.9")
OTHERS = (
    "`tests/integration/gateway/test_clients.py` tests curl, and sends the bodies of two clients that do not run: "
    "those of `vllm bench serve`, and of Open WebUI 0.12.4 (chats; titles, tags and follow-up questions), as their "
    "sources build them. guidellm, vLLM and Open WebUI need torch, so they are not installed here. `make schema` "
    "runs schemathesis."
)
COLUMNS = ("client", "packages", "passed", "not served, as expected", "failed", "command")


@dataclass(frozen=True, slots=True)
class Client:
    """`pattern`: of the names of its tests in the program; empty: all."""

    name: str
    packages: Sequence[str]
    program: Path
    pattern: str = ""


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
        if mark is not None and mark.get("message") == OF_ANOTHER:
            continue
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
    if outcome == ClientTests():
        outcome.failed.append("no test ran")
    return outcome


def first_line(text: str) -> str:
    """The first line that is not empty, short enough for a table's cell."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return line.replace("|", "\\|")[:200]


def install(client: Client) -> Path:
    """Make the client's environment, unless one with its packages exists. Returns: its folder.

    Raises: RuntimeError if the packages cannot be installed.
    """
    folder, ready = ENVIRONMENTS / client.name, ENVIRONMENTS / client.name / "installed"
    wanted, packages = " ".join(client.packages), client.packages
    if ready.exists() and ready.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if client.program.suffix == ".mjs":
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


def run(client: Client, folder: Path, url: str) -> ClientTests:
    """Run the client's tests against the gateway at this URL."""
    program, pattern = client.program, client.pattern
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "junit.xml"
        if program.suffix == ".mjs":
            shutil.copy(program, folder)  # Node.js looks for packages beside the program
            reporter = ("--test-reporter=junit", f"--test-reporter-destination={report}")
            chosen = [f"--test-name-pattern=^{pattern}"] if pattern else []
            command: list[object] = ["node", "--test", *chosen, *reporter, folder / program.name]
        else:
            options = ("-c", os.devnull, "--rootdir", ROOT, "--noconftest", "--import-mode=importlib")
            command = [folder / "bin/python", "-P", "-m", "pytest", "-p", "no:cacheprovider", "-o", "xfail_strict=true"]
            command += [*options, f"--junitxml={report}", *(["-k", f"test_{pattern}"] if pattern else []), program]
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


def clients_of(packages: Mapping[str, Any]) -> Iterator[Client]:
    """`packages`: as in packages.toml."""
    for name, value in packages.items():
        if isinstance(value, list):
            yield Client(name, value, next(PROGRAMS.glob(f"{name}.*")))
        else:
            yield from (Client(each, own, PROGRAMS / name, each) for each, own in value.items())


def chosen(names: Collection[str], only: str) -> list[str]:
    """The clients to run. Raises: BadParameter for one that does not exist."""
    wanted = [name for name in only.split(",") if name] or list(names)
    if unknown := set(wanted) - set(names):
        raise typer.BadParameter(f"no client {', '.join(sorted(unknown))}; the clients are {', '.join(names)}")
    return wanted


def main(
    *,
    only: Annotated[str, typer.Option(help="Clients, comma-separated; the report is then only printed.")] = "",
    out: Annotated[Path, typer.Option(help="File of the report.")] = RESULTS / "clients.md",
) -> None:
    """Install the clients, start a stack, run them, and print the table. Exit status 1: a client failed."""
    clients = {client.name: client for client in clients_of(tomllib.loads((PROGRAMS / "packages.toml").read_text()))}
    names = chosen(clients, only)
    report, failed = Report("Public clients, unchanged", OTHERS), False
    report.add_columns(*COLUMNS)
    with live_cluster(*OPTIONS) as cluster:
        for name in names:
            client = clients[name]
            try:
                outcome = run(client, install(client), cluster.url)
            except RuntimeError as error:
                outcome = ClientTests(failed=[f"not installed: {error}"])
            failed |= bool(outcome.failed)
            command = f"`make clients ARGS='--only {name}'`"
            cells = ("; ".join(found) or "-" for found in (outcome.passed, outcome.expected, outcome.failed))
            report.add_row(name, ", ".join(client.packages), *cells, command)
    if not only:
        report.write(out)
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
