"""A new user's first minutes: clone, `make serve`, first answer; their times, and the output of `make serve`.

python -m experiments.new_user

The command clones this repository into a temporary directory, with its own virtual environment and no stored latency
profile. pip uses its cache; with --no-cache it downloads everything.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated

import httpx
import typer

from dilaserve.commands.up import QUESTION
from dilaserve.stack.ports import free_ports
from experiments.live_cluster import chat_body
from experiments.report import RESULTS, Report

ROOT = Path(__file__).parents[1]
READY = "is ready"
# Of this process; a new user has none.
OWN_VARIABLES = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL"}
PIP_NOTICES = ("WARNING: ", "[notice]")  # on the machine's package indexes and newer versions of pip
OUTPUT = """The output of `make serve`, with seconds from its start, without pip's warnings on its configuration. On a
terminal pip also shows a progress bar for each download:

```text
{lines}
```"""


class MakeServe:
    """`make serve` in a clone, and the lines that it prints."""

    def __init__(self, clone: Path, port: int, *, cached: bool) -> None:
        environ = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        ours = str(Path(sys.executable).parent)
        environ["PATH"] = os.pathsep.join(part for part in environ["PATH"].split(os.pathsep) if part != ours)
        environ["XDG_CACHE_HOME"] = str(clone.with_name("cache"))
        environ |= {"PIP_CACHE_DIR": pip_cache()} if cached else {"PIP_NO_CACHE_DIR": "1"}
        self.lines: list[tuple[float, str]] = []
        self.ready = threading.Event()
        self._start_s = time.monotonic()
        self._process = subprocess.Popen(
            ["make", "serve", f"ARGS=--port {port}"],  # noqa: S607
            cwd=clone,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def at(self, text: str) -> float:
        """The time at which `text` was first printed, in seconds from the start."""
        return next(at_s for at_s, line in self.lines if text in line)

    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def interrupt(self) -> None:
        """Stop it as Ctrl-C does."""
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(timeout=90)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith(PIP_NOTICES):
                self.lines.append((self.elapsed_s(), line.rstrip()))
            if READY in line:
                self.ready.set()
        self.ready.set()  # it has ended


def main(
    *,
    cache: Annotated[bool, typer.Option(help="Let pip use its cache.")] = True,
    limit: Annotated[float, typer.Option(help="Time limit for the stack to be ready, in seconds.")] = 1800.0,
) -> None:
    """Print the times, and write them to experiments/results/new_user.md. Exit status 1: no answer."""
    packages = "Packages from pip's cache where it has them." if cache else "All packages downloaded."
    report, port = Report("A new user's first minutes", packages), free_ports(1)[0]
    report.add_columns("until", "s")
    with tempfile.TemporaryDirectory(prefix="dilaserve-new-user-") as directory:
        clone = Path(directory) / "dilaserve"
        start_s = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)  # noqa: S607
        cloned_s = time.monotonic() - start_s
        serve = MakeServe(clone, port, cached=cache)
        try:
            serve.ready.wait(limit)
            if not any(READY in line for _, line in serve.lines):
                print("\n".join(line for _, line in serve.lines))
                raise typer.Exit(1)
            answer, answered_s = ask(port), serve.elapsed_s()
        finally:
            serve.interrupt()
    phases = {
        "cloned": cloned_s,
        "packages installed": cloned_s + serve.at("dilaserve up"),
        "ready": cloned_s + serve.at(READY),
        "first answer": cloned_s + answered_s,
    }
    for name, at_s in phases.items():
        report.add_row(name, f"{at_s:.1f}")
    lines = "\n".join(f"{at_s:6.1f}  {line}" for at_s, line in serve.lines).replace(directory, "/home/user")
    report.add(f"The answer: {answer}", OUTPUT.format(lines=lines))
    report.write(RESULTS / "new_user.md")


def pip_cache() -> str:
    """The directory of the current user's cache."""
    command = [sys.executable, "-m", "pip", "cache", "dir"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def ask(port: int) -> str:
    """The demo model's reply to the example question that `dilaserve up` prints."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    reply = httpx.post(url, json=chat_body(QUESTION), timeout=60).raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


if __name__ == "__main__":
    typer.run(main)
