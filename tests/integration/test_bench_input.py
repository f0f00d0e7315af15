"""Invalid input of `dilaserve bench`: one line on standard error, exit status 2."""

import pytest

from dilaserve.cli import run

ROWS = ("--requests", "models/demo/heldout.jsonl")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((), "one of --requests"),
        (("--benchmark", "gsm8k", "--trace", "x.csv"), "one of --requests"),
        (("--benchmark", "gsm8k", "--data", "/nowhere"), "/nowhere"),
        (("--benchmark", "humaneval"), "mmlu-pro"),
        (("--trace", "/nowhere.csv"), "/nowhere.csv"),
        (("--benchmark", "gsm8k", "--judge-url", "http://127.0.0.1:1"), "--judge-model"),
        (("--plot", "plot.pdf"), ".png or .html"),
        ((*ROWS, "--judge-url", "http://127.0.0.1:1", "--judge-model", "x"), "no server answers"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_2(
    options: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert error in line
