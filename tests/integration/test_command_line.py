"""What the command line says of wrong usage and input: one line on standard error, exit status 2."""

from pathlib import Path

import pytest

from dilaserve.cli import run
from tests.support.stack import dilaserve


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "Missing command"),
        ("nothing", "No such command"),
        ("up --nothing", "No such option: --nothing"),
        ("up --port high", "'--port'"),
        ("up --slo inf", "'--slo'"),
        ("up --slo nan", "'--slo'"),
        ("up --slots 0", "'--slots'"),
        ("up --model /nonexistent", "not a directory, nor a hub id"),
        ("up --model MODEL --policy best", "accepted: "),
        ("up --model MODEL --cache huge", "accepted: "),
        ("up --model MODEL --thresholds 1.5", "numbers in (0, 1]"),
        ("up --model MODEL --instances two", "such as 2x1"),
        ("up --model MODEL --instances 999x1", "needs 999 slots"),
        ("up --model MODEL --sync-interval often", "accepted: always"),
        ("run nothing", "accepted: gateway, scheduler"),
        ("status --data-dir /nonexistent", "no stack in /nonexistent"),
        ("bench", "'--requests'"),
        ("bench --requests /nonexistent", "No such file"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: str, said: str, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(arguments.replace("MODEL", str(tiny_model_dir)).split())
    output = capsys.readouterr()
    assert (status, output.out, output.err.count("\n")) == (2, "", 1), output.err
    assert said in output.err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--data-dir", "/dev/null", "cannot be used"),
        ("--host", "nowhere.invalid", "cannot listen on nowhere.invalid"),
        ("--nats-url", "nats://127.0.0.1:1", "NATS with JetStream does not answer"),
        ("--database-url", "sqlite://", "not a database URL"),
        ("--database-url", "postgresql://u@127.0.0.1:1/x", "Postgres does not answer"),
    ],
)
def test_what_up_cannot_use_is_one_line_and_nothing_is_started(
    tiny_model_dir: Path, tmp_path: Path, option: str, value: str, said: str
) -> None:
    given = {"--model": tiny_model_dir, "--data-dir": tmp_path / "data", option: value}
    ended = dilaserve("up", *(part for pair in given.items() for part in pair))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended.stderr
    assert said in ended.stderr
    assert not (tmp_path / "data" / "nats").exists()


@pytest.mark.parametrize("command", ["up", "run", "status", "bench"])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    output = capsys.readouterr()
    assert "Example: " in output.out
    assert f"dilaserve {command}" in output.out
