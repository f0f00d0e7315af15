"""A model whose tokens may change, served as a user would: the streams have the tokens of `dilaserve decode`."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.stack import START_S, Stack, dilaserve, new_data_dir, running_stack
from tests.support.tiny_model import write_tiny_llada2, write_tiny_weights

MODEL = "tiny-LLaDA2.1"
BLOCK, OUTPUT = 8, 40  # tokens
PROMPTS = [list(range(40, 40 + length)) for length in (8, 16, 24, 9, 12, 31)]
THRESHOLD = EDIT_THRESHOLD = 0.1  # the weights are random, so confidences are low

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_weights(write_tiny_llada2(tmp_path_factory.mktemp("models") / MODEL))


@pytest.fixture(scope="module")
def stack(model: Path) -> Iterator[Stack]:
    options = ("--instances", "2x1", "--policy", "fixed", "--thresholds", THRESHOLD, "--edit-threshold", EDIT_THRESHOLD)
    with new_data_dir() as data_dir, running_stack(model, data_dir, *options) as running:
        yield running


def streamed(stack: Stack, prompt: list[int]) -> tuple[dict[int, int], list[dict[str, Any]], str, dict[str, Any]]:
    """The committed tokens by position, the cells that replace a draft, the text, and how the request was served."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": OUTPUT, "ignore_eos": True, "slo_ms": 60_000}
    reply = httpx.post(f"{stack.url}/v1/completions", json=body | {"stream": True, "canvas": True}, timeout=START_S)
    assert reply.status_code == 200, reply.text
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n")[:-2]]
    cells = [cell for event in events for cell in event.get("cells", ())]
    chunks = [event for event in events if event["object"] == "text_completion"]
    committed = [(cell["position"], cell["token"]) for cell in cells if cell["committed"]]
    assert len(committed) == len(dict(committed)), "a committed token was sent again"
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    [serving] = [chunk["dilaserve"] for chunk in chunks if "dilaserve" in chunk]
    return dict(committed), [cell for cell in cells if "replaces" in cell], text, serving


def test_streams_have_the_tokens_of_the_same_decoding_alone(stack: Stack, model: Path, tmp_path: Path) -> None:
    case, trace = tmp_path / "case.json", tmp_path / "trace.json"
    case.write_text(json.dumps({"requests": [{"id": str(i), "prompt_ids": ids} for i, ids in enumerate(PROMPTS)]}))
    lengths = ("--block-length", BLOCK, "--output-length", OUTPUT)
    options = ("--cache", "block", "--threshold", THRESHOLD, "--edit-threshold", EDIT_THRESHOLD, "--threads", 1)
    decoded = dilaserve("decode", "--model", model, "--input", case, "--out", trace, *options, *lengths)
    assert decoded.returncode == 0, decoded.stderr
    expected = [request["output_ids"] for request in json.loads(trace.read_text())["requests"]]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        served = list(threads.map(lambda prompt: streamed(stack, prompt), PROMPTS))
    for (committed, replaced, text, serving), output_ids in zip(served, expected, strict=True):
        assert [committed[position] for position in range(OUTPUT)] == output_ids
        assert len(replaced) == serving.get("edits", 0)
        whole = httpx.get(f"{stack.url}/v1/requests/{serving['request_id']}", timeout=START_S).json()
        assert whole["text"] == text
    assert any(replaced for _, replaced, _, _ in served)


def test_a_request_may_turn_edits_off(stack: Stack) -> None:
    body = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": OUTPUT, "ignore_eos": True, "slo_ms": 60_000}
    for edit_threshold, has_edits in ((None, True), (1.0, False)):
        reply = httpx.post(
            f"{stack.url}/v1/completions", json=body | {"edit_threshold": edit_threshold}, timeout=START_S
        )
        assert ("edits" in reply.json()["dilaserve"]) is has_edits
