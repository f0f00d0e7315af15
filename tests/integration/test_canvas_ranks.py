"""A model that denoises canvases, split over two ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.canvas_model import write_canvas_model
from tests.support.gemma_files import CANVAS


@pytest.mark.slow
def test_two_ranks_decode_the_same_texts(tmp_path: Path) -> None:
    model = write_canvas_model(tmp_path, rules={"max_denoising_steps": 4}, vocab_size=210)
    prompts = [[3, 10, 17, 24, 31, 38, 45, 52], [5, 6, 7]]
    case = {"requests": [{"id": str(i), "prompt_ids": prompt} for i, prompt in enumerate(prompts)]}
    (tmp_path / "case.json").write_text(json.dumps(case))
    found = []
    for ranks in (1, 2):
        out = tmp_path / f"{ranks}.json"
        command = [sys.executable, "-m", "dilaserve", "decode", "--model", str(model), "--cache", "block", "--batch"]
        command += ["--input", str(tmp_path / "case.json"), "--threshold", "0.7", "--block-length", str(CANVAS)]
        command += ["--output-length", str(2 * CANVAS), "--tp", str(ranks), "--device", "cpu", "--out", str(out)]
        subprocess.run(command, check=True)
        requests = json.loads(out.read_text())["requests"]
        found.append([(each["output_ids"], each["nfe"]) for each in requests])
    assert found[0] == found[1]
