"""Completions through a real bus, and several choices: lists of prompts, and `n`."""

import asyncio
import gc
from collections import defaultdict
from typing import Any

import httpx
import pytest

from services.gateway.api.request_models import ChatBody
from shared.messages.requests import OutcomeStatus
from shared.text import TextModel
from tests.support.gateway import CHAT, MODEL, ONE_CELL, RunningGateway
from tests.support.scheduler import ANSWER, AnsweringScheduler
from tests.support.waiting import reached

pytestmark = ONE_CELL


async def test_the_openai_client_gets_an_answer(gateway: RunningGateway) -> None:
    async with gateway.openai() as api:
        reply = await api.chat.completions.create(**CHAT)
    assert reply.choices[0].message.content == ANSWER
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    prompt = "user: How many pears?\nassistant: "
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(prompt), len(ANSWER))
    assert reply.usage.total_tokens == len(prompt) + len(ANSWER)


async def test_a_reply_states_how_it_was_served(gateway: RunningGateway) -> None:
    reply = await gateway.http.post("/v1/chat/completions", json=CHAT | {"slo_ms": 4000, "max_tokens": 33})
    served = reply.json()["dilaserve"]
    assert served["latency_ms"] > 0
    assert served.pop("latency_ms") < 4000
    assert 0 < served.pop("step_ms") < 4000
    assert served.pop("request_id") == reply.headers["x-request-id"]
    assert served == {
        "steps": 22,
        "recompute_steps": 22,
        "mean_threshold": 0.9,
        "min_threshold": 0.9,
        "slo_ms": 4000,
        "slo_met": True,
        "instances": ["worker-test"],
        "migrations": 0,
        "output_tokens": 64,
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", CHAT),
        ("responses", {"model": MODEL, "input": "How many pears?"}),
        ("messages", CHAT | {"max_tokens": 32}),
    ],
)
async def test_each_form_of_request_has_an_slo_metrics_and_an_outcome(
    gateway: RunningGateway, path: str, body: dict[str, Any]
) -> None:
    completed = 'dilaserve_gateway_requests_total{outcome="completed"}'
    before = await gateway.value(completed)
    reply = (await gateway.http.post(f"/v1/{path}", json=body | {"slo_ms": 900, "min_threshold": 0.7})).json()
    [request] = gateway.scheduler.requests
    assert (request.slo_s, request.min_threshold, reply["dilaserve"]["slo_ms"]) == (0.9, 0.7, 900)
    await gateway.metric(f"{completed} {before + 1}")
    assert (await gateway.http.get(f"/v1/requests/{reply['id']}")).json()["text"] == ANSWER


async def test_the_last_chunk_of_a_stream_states_how_it_was_served(gateway: RunningGateway) -> None:
    chunks = await gateway.events("/v1/chat/completions", CHAT)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["dilaserve"]["instances"] == ["worker-test"]
    assert len(chunks) > 4, "text is sent as it is committed"


async def test_a_stream_may_include_the_unmasked_tokens_and_the_guesses_of_each_step(gateway: RunningGateway) -> None:
    sent = await gateway.events("/v1/chat/completions", CHAT | {"canvas": True, "max_tokens": 32})
    steps = [event for event in sent if event["object"] == "dilaserve.canvas"]
    committed = (cell for step in steps for cell in step["cells"] if cell["committed"])
    cells = sorted(committed, key=lambda cell: int(cell["position"]))
    assert [step["step"] for step in steps] == list(range(11))
    assert [(step.get("tokens"), step.get("block_length")) for step in steps] == [(32, 32)] + [(None, None)] * 10
    assert [cell["position"] for cell in cells] == list(range(32))
    assert "".join(cell["text"] for cell in cells) == ANSWER
    assert cells[0] | {"confidence": 0} == {"position": 0, "token": 51, "text": "T", "confidence": 0, "committed": True}
    text = [event["choices"][0]["delta"].get("content", "") for event in sent if event not in steps]
    assert "".join(text) == ANSWER
    guesses = [[cell for cell in step["cells"] if not cell["committed"]] for step in steps]
    guess = {"position": 31, "token": 66, "text": "c", "confidence": 0.25, "committed": False}
    assert guesses == [[guess]] * (len(steps) - 1) + [[]]


async def test_the_default_output_is_128_tokens_or_the_models_limit(gateway: RunningGateway) -> None:
    for prompt_tokens, output_tokens in ((10, 128), (384, 128), (385, 96), (480, 32)):
        reply = await gateway.http.post("/v1/completions", json={"model": MODEL, "prompt": [65] * prompt_tokens})
        assert reply.json()["dilaserve"]["output_tokens"] == output_tokens


async def test_options_reach_the_scheduler(gateway: RunningGateway) -> None:
    options = {
        "max_completion_tokens": 40,
        "temperature": 0.5,
        "seed": 7,
        "stop": "!",
        "slo_ms": 2500,
        "priority": 3,
        "min_threshold": 0.6,
        "block_length": 16,
        "user": "me",
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "n": 1,
        "frequency_penalty": 0.5,
        "presence_penalty": -2.0,
        "repetition_penalty": 1.2,
        "logit_bias": {"65": -100, "66": 2.5},
        "response_format": {"type": "text"},
        "tools": None,
    }
    reply = await gateway.http.post("/v1/chat/completions", json=CHAT | options)
    assert reply.status_code == 200, reply.text
    [request] = gateway.scheduler.requests
    assert request.output_tokens == 48
    assert (request.temperature, request.seed, request.stop, request.slo_s) == (0.5, 7, ["!"], 2.5)
    assert (request.priority, request.min_threshold, request.block_length) == (3, 0.6, 16)
    assert (request.top_p, request.top_k, request.min_p) == (0.9, 40, 0.05)
    assert (request.frequency_penalty, request.presence_penalty, request.repetition_penalty) == (0.5, -2.0, 1.2)
    assert request.logit_bias == {65: -100.0, 66: 2.5}


async def test_a_body_is_not_kept_while_its_request_runs(gateway: RunningGateway) -> None:
    async with gateway.scheduler.withholding(gateway.http.post("/v1/chat/completions", json=CHAT)):
        gc.collect()
        await reached(lambda: not any(type(each) is ChatBody for each in gc.get_objects()))


async def test_concurrent_requests_each_get_their_own_answer(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda request: str(request.seed)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http, asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(http.post("/v1/chat/completions", json=CHAT | {"seed": i})) for i in range(60)]
    texts = [task.result().json()["choices"][0]["message"]["content"] for task in sent]
    assert texts == [str(i) for i in range(60)]


PATH = "/v1/completions"


@pytest.fixture
def echoing(scheduler: AnsweringScheduler, text: TextModel) -> AnsweringScheduler:
    """Answers with the request's prompt and seed."""
    scheduler.answer = lambda request: f"{text.decode(text.encode_request(request))} {request.seed}"
    return scheduler


def texts(reply: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in reply["choices"]]


async def test_each_prompt_has_a_choice(gateway: RunningGateway, echoing: AnsweringScheduler) -> None:
    body = {"model": MODEL, "prompt": ["one", "two", "three"], "seed": 7}
    reply = (await gateway.http.post(PATH, json=body)).json()
    assert texts(reply) == ["one 7", "two 7", "three 7"]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert reply["usage"]["prompt_tokens"] == len("onetwothree")
    ids = {choice["dilaserve"]["request_id"] for choice in reply["choices"]}
    assert len(ids) == 3
    assert reply["dilaserve"]["request_id"] in ids


async def test_choices_of_one_prompt_have_consecutive_seeds(
    gateway: RunningGateway, echoing: AnsweringScheduler
) -> None:
    body = {"model": MODEL, "prompt": ["one", "two"], "n": 2, "seed": 2**63 - 1}
    reply = (await gateway.http.post(PATH, json=body)).json()
    assert texts(reply) == [f"{prompt} {seed}" for prompt in ("one", "two") for seed in (2**63 - 1, -(2**63))]
    assert reply["usage"]["prompt_tokens"] == len("onetwo")
    assert len({request.seed for request in echoing.requests}) == 2


async def test_a_stream_interleaves_the_choices(gateway: RunningGateway, echoing: AnsweringScheduler) -> None:
    body = {"model": MODEL, "prompt": ["one", "two"], "n": 2, "stream_options": {"include_usage": True}}
    chunks = await gateway.events(PATH, body)
    pieces: defaultdict[int, str] = defaultdict(str)
    reasons = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            pieces[choice["index"]] += choice["text"]
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
    assert dict(pieces) == {0: "one None", 1: "one None", 2: "two None", 3: "two None"}
    assert reasons == dict.fromkeys(range(4), "stop")
    assert chunks[-1]["usage"]["completion_tokens"] == 4 * len("one None")


async def test_one_failed_choice_fails_the_reply_and_closes_the_others(gateway: RunningGateway) -> None:
    gateway.scheduler.status = OutcomeStatus.FAILED
    for stream in (False, True):
        body = {"model": MODEL, "prompt": ["one", "two"], "stream": stream}
        reply = await gateway.http.post(PATH, json=body)
        assert "the test chose failed" in reply.text
    await gateway.metric("dilaserve_gateway_active_requests 0.0")
