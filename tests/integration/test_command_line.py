"""Wrong usage and invalid input on the command line: one line on standard error, exit status 2."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from dilaserve.cli import build_app, run
from dilaserve.stack import observer as stack_observer
from dilaserve.stack import probes
from dilaserve.stack.observer import cluster_reports
from dilaserve.stack.packages import PACKAGES
from dilaserve.stack.ports import free_ports
from shared.bus.client import Bus
from tests.builders import scheduler_stats
from tests.support.nats import NatsServer
from tests.support.refusal import refusal
from tests.support.waiting import until

TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}  # rich draws live in a terminal alone


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("", "Missing command. Accepted: bench, bus-users, cell-config,"),
        ("keys", "Missing command. Accepted: create, list, revoke"),
        ("nothing", "No such command"),
        ("serve", "Did you mean 'up'?"),
        ("statsu", "Did you mean 'status'?"),
        ("up --nothing", "No such option: --nothing"),
        ("up --modle x", "--model"),
        ("up --port high", "'--port'"),
        ("up --slo inf", "'--slo'"),
        ("up --slo nan", "'--slo'"),
        ("up --slots 0", "'--slots'"),
        ("up --model /nonexistent", "neither a directory nor a hub id"),
        ("up --model MODEL --policy best", "is not one of"),
        ("up --model MODEL --cache huge", "is not one of"),
        ("up --model MODEL --thresholds 1.5", "numbers in (0, 1]"),
        ("up --model MODEL --instances two", "such as 2x1"),
        ("up --model MODEL --instances 999x1", "needs 999 slots"),
        ("up --model MODEL --sync-interval often", "accepted: always"),
        ("run nothing", "accepted: gateway, scheduler"),
        ("status --data-dir /nonexistent", "no stack in /nonexistent"),
        ("bench", "--requests FILE.jsonl"),
        ("status --url http://host:port --nats-url nats://127.0.0.1:1", "such as http://127.0.0.1:8000"),
        ("status --cell a.b", "matching regex"),
        ("bus-users --cell a,b,a", "there more than once"),
        ("drain --cell a.b", "matching regex"),
        ("drain --data-dir /nonexistent", "no stack in /nonexistent"),
        ("status --watch --json", "exclude each other"),
        ("bench --requests /nonexistent", "No such file"),
        ("bench --requests models/demo/heldout.jsonl --url host:8000", "such as http://127.0.0.1:8000"),
        ("bench --requests models/demo/heldout.jsonl --rate inf", "'--rate'"),
        ("bench --requests models/demo/heldout.jsonl --out docs", "is a directory"),
        ("bench --benchmark gsm8k --trace x.csv", "one of --requests"),
        ("bench --benchmark gsm8k --data /nowhere", "/nowhere"),
        ("bench --benchmark humaneval", "mmlu-pro"),
        ("bench --trace /nowhere.csv", "/nowhere.csv"),
        ("bench --benchmark gsm8k --judge-url http://127.0.0.1:1", "--judge-model"),
        ("bench --plot plot.pdf", ".png or .html"),
        (
            "bench --requests models/demo/heldout.jsonl --judge-url http://127.0.0.1:1 --judge-model x",
            "no server answers",
        ),
        ("profile --model MODEL --out docs", "is a directory"),
        ("profile --model MODEL --out PROFILE.csv --device tpu", "is not one of 'auto', 'cpu', 'cuda'"),
        ("profile --model MODEL --out PROFILE.csv --dtype int8", "is not one of 'auto', 'float32', 'bfloat16'"),
        ("keys create alice --concurrency 9999999999", "'--concurrency'"),
        ("keys create ''", "NAME must not be empty"),
        ("keys list --database-url postgresql://u@host:port/x", "not a database URL"),
        ("keys list --database-url postgresql://u@host/x?sslmode=full", "accepted: disable, allow"),
    ],
)
def test_wrong_usage_prints_one_line(
    arguments: str, error: str, tiny_checkpoint_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error_line = refusal(capsys, *shlex.split(arguments.replace("MODEL", str(tiny_checkpoint_dir))))
    assert error in error_line
    assert "Value error" not in error_line


def test_the_debug_log_level_adds_a_traceback_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DILASERVE_LOG_LEVEL", "debug")
    assert run(["status", "--data-dir", "/nonexistent"]) == 2
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("Traceback")
    assert last.startswith("dilaserve: no stack in /nonexistent")


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("--data-dir", "/dev/null", "cannot be used"),
        ("--cache", "block", "--cache block: not possible with this model; accepted: dual, prefix, none"),
        ("--tls-key", "key.pem", "must be set together: --tls-certificate and --tls-key"),
        ("--host", "nowhere.invalid", "cannot listen on nowhere.invalid"),
        ("--nats-url", "http://127.0.0.1:1", "accepted: nats://HOST:PORT"),
        ("--nats-url", "nats://127.0.0.1:1", "NATS with JetStream does not answer"),
        ("--database-url", "sqlite://", "not a database URL"),
        ("--database-url", "postgresql://u@127.0.0.1:1/x", "Postgres does not answer"),
    ],
)
def test_invalid_options_of_up_print_one_line_and_start_nothing(
    tiny_checkpoint_dir: Path,
    tmp_path: Path,
    option: str,
    value: str,
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "ANSWER_TIMEOUT_S", 0.2)
    given = {"--model": tiny_checkpoint_dir, "--data-dir": tmp_path / "data", "--port": free_ports(1)[0], option: value}
    assert error in refusal(capsys, "up", *(part for pair in given.items() for part in pair))
    assert not (tmp_path / "data" / "nats").exists()


def test_a_taken_metrics_port_is_reported_with_its_option(
    tiny_checkpoint_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1] - 1  # so that the second is taken
        options = ["--model", tiny_checkpoint_dir, "--data-dir", tmp_path / "data", "--metrics-port", first]
        error = refusal(capsys, "up", *options, "--port", free_ports(1)[0])
    assert "the port is taken; choose another with --metrics-port" in error


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"dilaserve {version('dilaserve')}\n"


@pytest.mark.parametrize(
    "service", [name if name == "scheduler" else pytest.param(name, marks=pytest.mark.slow) for name in PACKAGES]
)
def test_a_service_run_by_the_command_prints_its_version(service: str) -> None:
    command = [sys.executable, "-m", "dilaserve", "run", service, "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == f"dilaserve {service} {version('dilaserve')}\n"


def test_a_service_refuses_other_arguments_in_one_line() -> None:
    command = [sys.executable, "-m", "services.scheduler", "--port", "80"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("scheduler: --port 80: accepted: --version; settings are variables")


def test_the_help_of_every_command_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    group = typer.main.get_command(build_app())
    names = list(group.commands)  # type: ignore[attr-defined]
    assert {"up", "status", "doctor", "keys", "bench"} <= set(names)
    for arguments in (*([name] for name in names), ["keys", "create"], ["keys", "list"], ["keys", "revoke"]):
        assert run([*arguments, "--help"]) == 0
        assert "Example: " in capsys.readouterr().out, arguments


def test_the_shell_completes_command_names() -> None:
    completion = {"_DILASERVE_COMPLETE": "complete_bash", "COMP_WORDS": "dilaserve sta", "COMP_CWORD": "1"}
    done = subprocess.run(
        [Path(sys.executable).with_name("dilaserve")],
        env=os.environ | completion,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["status"]


def test_doctor_reports_problems_with_fixes(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ["--data-dir", tmp_path, "--port", taken.getsockname()[1], "--model", tiny_model_dir]
        assert run(["doctor", "--json", "--profile", str(tmp_path / "none.csv"), *map(str, options)]) == 1
        report = json.loads(capsys.readouterr().out)
        assert run(["doctor", *map(str, options)]) == 1
    assert str(tiny_model_dir) in "".join(capsys.readouterr().out.split()), "the table cuts no path"
    wrong = {finding["subject"]: finding["fix"] for finding in report["findings"] if not finding["ok"]}
    assert set(wrong) == {"latency profile", "model", "port"}
    assert "give a whole checkpoint" in wrong["model"]
    assert "dilaserve profile" in wrong["latency profile"]
    assert "--port" in wrong["port"]


def test_doctor_reports_no_problem_if_a_stack_can_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--data-dir", str(tmp_path), "--port", str(free_ports(1)[0])]) == 0
    assert "wrong" not in capsys.readouterr().out


async def test_the_observer_reports_while_the_bus_is_unavailable(
    own_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_observer, "ANSWER_TIMEOUT_S", 0.2)
    async with contextlib.aclosing(cluster_reports("http://127.0.0.1:1", own_server.url, "down")) as reports:
        await anext(reports)
        own_server.stop()
        report = await anext(reports)
    assert (report.ready, report.scheduler, report.instances) == (False, None, [])


async def test_status_watch_runs_until_interrupted(bus: Bus) -> None:
    assert bus.nc.connected_url is not None
    url = bus.nc.connected_url.geturl()
    command = ["status", "--watch", "--url", "http://127.0.0.1:1", "--nats-url", url, "--cell", bus.subjects.cell]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dilaserve", *command, stdout=asyncio.subprocess.PIPE, env=os.environ | TERMINAL
    )
    assert process.stdout is not None
    output = b""

    async def shown() -> bool:
        nonlocal output
        await bus.publish(bus.subjects.stats("scheduler"), scheduler_stats(slo_attainment=0.75))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                output += await process.stdout.read(4096)  # type: ignore[union-attr]
        return b"75.0%" in output and b"not ready" in output

    try:
        await until(shown)
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = await process.communicate()
    assert process.returncode == 0, rest
