"""`dilaserve verify` on the demo model."""

from pathlib import Path

import msgspec
import pytest

from dilaserve.cli import run
from dilaserve.stack.up_options import DEMO_MODEL
from tests.support.refusal import refusal

ROWS = str(DEMO_MODEL / "heldout.jsonl")


@pytest.mark.slow
def test_the_demo_model_has_its_published_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["verify", "--model", str(DEMO_MODEL), "--data", ROWS, "--questions", "8", "--batch", "8"]
    assert run([*arguments, "--out", str(tmp_path / "figures.json"), "--json"]) == 0
    report = msgspec.json.decode((tmp_path / "figures.json").read_bytes())
    assert report == msgspec.json.decode(capsys.readouterr().out)
    assert (report["model"], report["benchmark"], report["differences"]) == ("demo", "rows", [])
    assert report["published"]["accuracy"] == 0.937
    assert report["own"]["questions"] == 8


@pytest.mark.parametrize(
    ("rows", "error"),
    [('{"prompt": "What is 1 + 1?"}\n', "each row needs an answer"), ("", "is empty"), ("{", "row 1")],
)
def test_unusable_questions_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, error: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(rows)
    assert error in refusal(capsys, "verify", "--model", DEMO_MODEL, "--data", tmp_path / "rows.jsonl")


def test_a_model_of_another_architecture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}')
    error = refusal(capsys, "verify", "--model", tmp_path, "--data", ROWS)
    assert "architecture: LlamaForCausalLM; supported: LLaDAModelLM, DreamModel" in error
