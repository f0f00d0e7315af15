"""The whole system from a client's side: real NATS, real Postgres, each service in its own process, the demo model."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dilaserve.stack.up_options import DEMO_MODEL
from tests.support.benchmark_files import write_benchmark_files
from tests.support.demo_questions import MODEL, answer
from tests.support.judge_server import judge_server
from tests.support.stack import Stack, dilaserve, new_data_dir, running_stack

SLO_S = 120
# With one threshold and no cache, a request's text is independent of other requests.
OPTIONS = ("--instances", "2x1", "--policy", "fixed", "--thresholds", "0.9", "--cache", "none")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two instances of the demo model, shared by all tests."""
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *OPTIONS) as running:
        yield running
        assert running.stop() == 0


def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="any", timeout=60)


def test_an_openai_client_gets_the_right_number_of_apples(stack: Stack) -> None:
    messages: Any = [{"role": "user", "content": "A shop has 5 apples and buys 7 more. How many apples are there?"}]
    with client(stack) as openai_client:
        reply = openai_client.chat.completions.create(model=MODEL, messages=messages, max_tokens=64)
    assert "The answer is 12." in str(reply.choices[0].message.content)
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    served = reply.model_extra["dilaserve"] if reply.model_extra else {}
    assert served["steps"] >= served["recompute_steps"] >= 1
    assert served["mean_threshold"] == pytest.approx(0.9)


@pytest.mark.slow
async def test_100_concurrent_requests_get_the_same_texts_as_alone(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url, timeout=110, limits=httpx.Limits(max_connections=100)) as http:
        together = await asyncio.gather(*[answer(http, i) for i in range(100)])
        for i in range(0, 100, 8):
            assert await answer(http, i) == together[i]


TEMPLATE = "Step 1: <mask:5>. Step 2: <mask:5>. The answer is 21."


async def fill_in(http: httpx.AsyncClient, problem: str, **fields: object) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": f"<|user|>{problem}<|assistant|>", "slo_ms": 1000 * SLO_S, **fields}
    reply = await http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def test_a_form_concerns_the_whole_text_of_a_template(stack: Stack) -> None:
    form = r"Step 1: [0-9]+[-+*/][0-9]+=[0-9]+\. Step 2: [0-9]+[-+*/][0-9]+=[0-9]+\. The answer is 21\."
    async with httpx.AsyncClient(base_url=stack.url, timeout=110) as http:
        filled = await fill_in(http, "John has 54 flowers.", template=TEMPLATE, guided_regex=form)
        assert re.fullmatch(form, filled["choices"][0]["text"])
        body = {"model": MODEL, "prompt": "a", "template": TEMPLATE, "guided_regex": "The answer is .*"}
        refused = await http.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert "does not match the pattern" in refused.json()["error"]["message"]


# --- `dilaserve bench` ---


def bench(stack: Stack, *options: object) -> dict[str, Any]:
    done = dilaserve("bench", "--url", stack.url, "--slo", SLO_S, "--json", *options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_bench_replays_a_trace_with_its_times_and_lengths(stack: Stack, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,slo_s,priority\n0,20,32,,\n1.2,40,64,0.001,5\n")
    out, plot = tmp_path / "result.json", tmp_path / "timeline.png"
    result = bench(stack, "--trace", trace, "--out", out, "--plot", plot)
    assert (result["requests"], result["completed"]) == (2, 2)
    assert result["slo_attainment"] == 0.5  # the second has an SLO of 1 ms
    assert result["requests_per_s"] == pytest.approx(2 * result["goodput_per_s"])
    assert [entry["rps"] for entry in result["timeline"]] == [1, 1]
    assert result["timeline"][0]["instances_per_tp"] == {"1": 2}
    assert json.loads(out.read_bytes()) == result
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_bench_sends_each_question_once_and_grades_the_reply(stack: Stack, tmp_path: Path) -> None:
    result = bench(stack, "--benchmark", "mmlu-pro", "--data", write_benchmark_files(tmp_path), "--rate", 10)
    assert (result["requests"], result["completed"]) == (1, 1)
    assert result["accuracy"] in (0, 1)
    assert "judge" not in result


@pytest.mark.slow  # waits between its attempts
def test_bench_retries_the_judge_and_counts_unscored_replies(stack: Stack, tmp_path: Path) -> None:
    def reply(content: str, times: int) -> str:
        if "What is 2 + 0?" in content or ("What is 2 + 1?" in content and times == 0):
            return "I would give 7 out of 10."
        return '{"score": 8, "explanation": "Right."}'

    with judge_server(reply) as judge:
        options = ("--judge-url", judge.url, "--judge-model", "strict")
        result = bench(stack, "--benchmark", "gsm8k", "--data", write_benchmark_files(tmp_path), "--rate", 10, *options)
    assert result["completed"] == 4
    assert 0 <= result["accuracy"] <= 1
    assert result["judge"] == {"model": "strict", "mean_score": 8, "scored": 3, "unscored": 1}
    assert len(judge.bodies) == 4 + 2
    assert all("### ASSISTANT ANSWER:" in body["messages"][0]["content"] for body in judge.bodies)
