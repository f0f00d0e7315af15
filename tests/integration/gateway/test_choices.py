"""Several choices: lists of prompts, and `n`."""

from collections import defaultdict
from typing import Any

import pytest

from shared.messages.requests import OutcomeStatus
from shared.text import TextModel
from tests.support.gateway import MODEL, ONE_CELL, RunningGateway
from tests.support.scheduler import AnsweringScheduler

pytestmark = ONE_CELL

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
