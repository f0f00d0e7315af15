"""`dilaserve up` with a block-causal model: each text is the one that the model decodes alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from shared.messages.requests import Request
from shared.text import TextModel
from tests.support.stack import START_S, Stack, new_data_dir, running_stack
from tests.support.tiny_model import write_tiny_sdar, write_tiny_weights

THRESHOLD, OUTPUT = 0.1, 30
SYSTEM = "A farmer sells fruit at the market. " * 6
PROMPTS = [f"how many {fruit}?" for fruit in ("apples", "pears", "figs", "ripe plums", "limes", "kiwis")]
PROMPTS += [f"{SYSTEM}How many {fruit}?" for fruit in ("melons", "cherries")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_weights(write_tiny_sdar(tmp_path_factory.mktemp("models") / "tiny-sdar"))


def alone(model: Path) -> list[str]:
    """The texts of the prompts, each decoded alone without a cache."""
    text, runner = TextModel(model, "m"), Runner(load(model, torch.float32, "cpu"))
    options = DecodeOptions(CacheMode.NONE, THRESHOLD, text.card.block_length, OUTPUT)
    found = []
    for prompt in PROMPTS:
        case = CaseRequest("a", text.encode_prompt(prompt).tolist())
        [trace] = decode_together([case], runner, options)
        request = Request(request_id="a", output_tokens=OUTPUT, max_tokens=OUTPUT)
        found.append(text.finish(np.array(trace.output_ids, dtype=np.int32), request).text)
    return found


def complete(stack: Stack, prompt: str) -> httpx.Response:
    body = {"model": "tiny-sdar", "prompt": prompt, "max_tokens": OUTPUT, "slo_ms": 60_000}
    return httpx.post(f"{stack.url}/v1/completions", json=body, timeout=START_S)


@pytest.mark.slow
def test_texts_of_concurrent_requests_are_those_decoded_alone(model: Path) -> None:
    options = ("--policy", "fixed", "--thresholds", THRESHOLD, "--instances", "2x1", "--device", "cpu")
    with new_data_dir() as data_dir, running_stack(model, data_dir, *map(str, options)) as stack:
        with ThreadPoolExecutor() as pool:
            replies = list(pool.map(lambda prompt: complete(stack, prompt), PROMPTS))
        assert [reply.status_code for reply in replies] == [200] * len(PROMPTS), replies[0].text
        assert [reply.json()["choices"][0]["text"] for reply in replies] == alone(model)
        served = [reply.json()["dilaserve"] for reply in replies]
        assert [each["recompute_steps"] for each in served] == [1 + each["migrations"] for each in served]
        assert any(each["steps"] < each["output_tokens"] for each in served)
        again = complete(stack, PROMPTS[-1]).json()
        assert again["choices"][0]["text"] == replies[-1].json()["choices"][0]["text"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
