"""`dilaserve simulate`, from files to files."""

from pathlib import Path

import msgspec
import pytest

from dilaserve import outputs
from dilaserve.cli import run

TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i * 0.5},{10 + i},64\n" for i in range(40))
PROFILE = "tp,batch_tokens,step_kind,latency_ms\n" + "".join(
    f"{tp},{tokens},{kind},{(20 + tokens * 0.1) / tp}\n"
    for tp in (1, 2)
    for kind in ("recompute", "cache")
    for tokens in (32, 8192)
)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    for name, text in (("trace", TRACE), ("profile", PROFILE), ("steps", "threshold,tokens_per_step\n0.9,3\n0.5,7\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    files = [part for name in ("trace", "profile", "steps") for part in (f"--{name}", str(tmp_path / f"{name}.csv"))]
    files += ["--cluster", "2x1,1x2", "--slo", "8", "--predictor", "one-shot"]
    return ["simulate", *files, "--out", str(tmp_path / "result.json")]


def test_a_trace_is_served_and_reported(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--policy", "dilaserve", "--plot", str(tmp_path / "timeline.png"), "--json"]) == 0
    result = msgspec.json.decode((tmp_path / "result.json").read_bytes())
    assert result == msgspec.json.decode(capsys.readouterr().out)
    assert (result["requests"], result["completed"], result["failed"]) == (40, 40, 0)
    assert 0.5 <= result["mean_threshold"] <= 0.9
    assert result["timeline"][0]["instances_per_tp"] == {"1": 2, "2": 1}
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (["--cluster", "16"], "COUNTxTP"),
        (["--cluster", "1x8"], "tp 8"),
        (["--trace", "/nowhere/trace.csv"], "/nowhere/trace.csv"),
        (["--steps", "/nowhere/steps.csv"], "/nowhere/steps.csv"),
        (["--plot", "timeline.pdf"], ".png or .html"),
        (["--thresholds", "2"], "(0, 1]"),
        (["--fail", "3"], "AT_S:INSTANCE"),
        (["--fail", "3:9"], "from 0 to 2"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_2(
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    wrong: list[str],
    error: str,
) -> None:
    monkeypatch.setattr(outputs, "LINE_S", 1e9)  # a busy machine would get lines of progress
    assert run([*arguments, *wrong]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert error in line
