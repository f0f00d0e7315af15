"""`dilaserve train-predictor` on a tiny model of random weights."""

import json
from pathlib import Path

import pytest

from dilaserve.cli import run
from services.predictor.model import load_predictor
from tests.support.refusal import refusal


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n} + {n}", "output_tokens": 32}) + "\n" for n in range(5)))
    return path


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
