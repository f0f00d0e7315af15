"""`dilaserve tune` and `dilaserve train-predictor` on a tiny model of random weights."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dilaserve.cli import run
from dilaserve.prediction.collecting import collect
from dilaserve.tuning import steps
from services.predictor.model import load_predictor
from shared.profile import read_profile
from tests.support.refusal import refusal

Tune = Callable[..., int]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "tuned"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = ({"prompt": f"{n} + {n}", "output_tokens": 32, "answer": str(2 * n)} for n in range(5))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def tune(tiny_checkpoint_dir: Path, prompts: Path, out: Path) -> Tune:
    """Runs the command with the smallest plan. Returns: its exit status."""

    def start(**options: object) -> int:
        given = {"model": tiny_checkpoint_dir, "prompts": prompts, "out": out, "thresholds": "0.004,0.9"}
        given |= {"max-tokens": 32, "repeats": 1, "threads": 1, "held-out": 1} | options
        return run(["tune", *(part for name, value in given.items() for part in (f"--{name}", str(value)))])

    return start


def test_the_results_are_written_with_a_report_and_the_command_that_serves_them(
    tune: Tune, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune() == 0
    _, card = load_predictor(out / "predictor")
    assert card.thresholds == [0.004, 0.9]
    assert read_profile(out / "profile.csv").tp_degrees == [1]
    report = (out / "report.md").read_text()
    assert "| threshold | tokens per step | exact match | suggested |" in report
    assert card.version in report
    assert (out / "latency.png").stat().st_size > 1000
    assert (out / "thresholds.png").stat().st_size > 1000
    shown = capsys.readouterr().out
    assert "warning: 0 % exact match at threshold 0.9" in shown
    command = shown.splitlines()[-1].strip()
    assert command.startswith("dilaserve up --model ")
    assert f"--predictor {out}/predictor --profile {out}/profile.csv --thresholds 0.9 --slo" in command
    assert command in report


def test_an_interrupted_tuning_continues_with_what_is_stored(
    tune: Tune, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "PART_PROMPTS", 2)
    parts = 0

    def interrupted(*arguments: object) -> object:
        nonlocal parts
        parts += 1
        if parts == 2:
            raise RuntimeError
        return collect(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "collect", interrupted)
    assert tune() == 1
    assert [path.name for path in (out / "runs" / "training").iterdir()] == ["0000.runs"]
    monkeypatch.setattr(steps, "measure_degrees", None)  # a stored profile is not measured again
    assert tune() == 0
    assert parts == 2 + 2  # the part that was interrupted, and the held-out prompt
    assert "kept from an earlier start: [1]" in capsys.readouterr().out


def test_other_options_in_the_same_folder_are_refused(
    tune: Tune, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out.mkdir()
    (out / "tune.json").write_text(json.dumps({"model": "other"}))
    assert tune() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "has results with model other, not" in line
    assert "choose another folder" in line


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"model": "/nowhere"}, "no model in /nowhere"),
        ({"prompts": "/nowhere"}, "--prompts /nowhere: No such file"),
        ({"tp": "x"}, "--tp x"),
        ({"thresholds": "2"}, "--thresholds 2"),
    ],
)
def test_invalid_input_is_one_line_and_keeps_the_folder_free_for_the_right_one(
    tune: Tune, out: Path, wrong: dict[str, str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(**wrong) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert error in line
    assert not (out / steps.OPTIONS).exists()


def test_a_loadable_predictor_is_written_and_its_errors_are_reported(
    tiny_checkpoint_dir: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "predictor"
    options = f"--thresholds 0.004,0.9 --json --threads 1 --model {tiny_checkpoint_dir} --prompts {prompts} --out {out}"
    status = run(["train-predictor", *options.split()])
    output = capsys.readouterr()
    assert (status, output.err) == (0, "")
    report = json.loads(output.out)
    _, card = load_predictor(out)
    assert report["predictor"] == card.version
    assert report["requests"] == {"learnt": 4, "held_out": 1}
    assert report["update_granularity"] == card.update_granularity
    assert card.thresholds == [0.004, 0.9]
    assert set(report["mean_relative_error"]["fixed"]) >= {"one-shot", "all features"}


def test_the_text_ends_with_the_command_that_serves_the_predictor(
    tiny_checkpoint_dir: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = f"--thresholds 0.004 --threads 1 --model {tiny_checkpoint_dir} --prompts {prompts} --out {tmp_path}"
    assert run(["train-predictor", *options.split()]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"Next: dilaserve up --model {tiny_checkpoint_dir} --predictor {tmp_path}")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"--model": "/nowhere"}, "no model in /nowhere"),
        ({"--prompts": "/nowhere"}, "--prompts /nowhere: No such file"),
        ({"--thresholds": "2"}, "--thresholds 2"),
        ({"--cache": "some"}, "is not one of 'none', 'prefix', 'dual'"),
        ({"--output-lengths": "64,x"}, "--output-lengths 64,x"),
        ({"--output-lengths": "1024"}, "at most 512"),
        ({"--out": "/dev/null/out"}, "accepted: a directory"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    tiny_checkpoint_dir: Path,
    prompts: Path,
    tmp_path: Path,
    wrong: dict[str, str],
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {"--model": tiny_checkpoint_dir, "--prompts": prompts, "--out": tmp_path / "out", **wrong}
    assert error in refusal(capsys, "train-predictor", *(part for option in options.items() for part in option))
    assert not (tmp_path / "out").exists()
