"""Claude Code 2.1.332 and Codex 0.171.0: two turns of each as recorded, with shorter texts and fewer tools."""

import json
import os
from pathlib import Path

import httpx

BODIES = Path(__file__).with_name("bodies")
SERVER = os.environ["ANTHROPIC_BASE_URL"]


def replay(name: str) -> list[str]:
    """The types of the last event of each turn's stream."""
    recorded = json.loads((BODIES / f"{name}.json").read_text())
    last = []
    for turn in recorded["turns"]:
        reply = httpx.post(SERVER + recorded["path"], json=turn, headers=recorded["headers"], timeout=60)
        assert reply.status_code == 200, reply.text
        last.append(json.loads(reply.text.rstrip().rpartition("data: ")[2])["type"])
    return last


def test_claude_code() -> None:
    assert replay("claude_code") == ["message_stop"] * 2


def test_codex() -> None:
    assert set(replay("codex")) <= {"response.completed", "response.incomplete"}
