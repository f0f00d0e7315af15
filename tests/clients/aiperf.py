"""aiperf, a load generator: streamed chats, two at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path

URL = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
MODEL = Path(__file__).parents[2] / "models/demo-block"
COUNT = 6  # requests


def test_profile(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("aiperf")),
        "profile",
        "--model",
        "demo-block",
        "--url",
        URL,
        "--ui",
        "none",
    ]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", str(MODEL), "--artifact-dir", str(tmp_path)]
    command += ["--request-count", str(COUNT), "--concurrency", "2", "--isl", "20", "--osl", "32"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    [path] = tmp_path.rglob("profile_export_aiperf.json")
    measured = json.loads(path.read_text())
    assert measured["request_count"]["avg"] == COUNT
    assert measured["error_summary"] == []
    assert measured["time_to_first_token"]["avg"] > 0
