"""The ends and the beginning of a text: `stop_token_ids`, `ignore_eos`, `echo`, `stop_reason`."""

from typing import Any

import pytest

from shared.text import TextModel
from tests.support.gateway import ONE_CELL, RunningGateway
from tests.support.scheduler import ANSWER

pytestmark = ONE_CELL

PATH = "/v1/completions"
PLAIN: dict[str, Any] = {"model": "tiny-llada", "prompt": "2+2=", "max_tokens": 32}


async def completed(gateway: RunningGateway, body: dict[str, Any], *, stream: bool) -> list[dict[str, Any]]:
    """The choices, each with its whole text and its end."""
    if not stream:
        reply = await gateway.http.post(PATH, json=body)
        assert reply.status_code == 200, reply.text
        return list(reply.json()["choices"])
    parts = [choice for chunk in await gateway.events(PATH, body) for choice in chunk["choices"]]
    ends = [part for part in parts if part["finish_reason"]]
    return [
        end | {"text": "".join(part["text"] for part in parts if part["index"] == end["index"])}
        for end in sorted(ends, key=lambda end: end["index"])
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_ends_at_the_stop_of_its_request_and_names_it(
    gateway: RunningGateway, text: TextModel, stream: bool
) -> None:
    nine, eos = int(text.encode_prompt("9")[0]), text.card.eos_token_id
    for fields, *expected in (
        ({}, ANSWER, "stop", None),
        ({"stop_token_ids": [eos, nine]}, "The answer is 2", "stop", nine),
        ({"stop": ["x", "is"]}, "The answer ", "stop", "is"),
        ({"ignore_eos": True}, ANSWER, "length", None),
    ):
        [choice] = await completed(gateway, PLAIN | fields, stream=stream)
        assert [choice["text"], choice["finish_reason"], choice["stop_reason"]] == expected
    whole = (await gateway.http.post(PATH, json=PLAIN | {"ignore_eos": True})).json()
    assert whole["usage"]["completion_tokens"] == 32


async def test_usage_counts_the_tokens_up_to_the_stop_text(gateway: RunningGateway) -> None:
    body = PLAIN | {"stop": ["is"], "logprobs": 0}
    whole = (await gateway.http.post(PATH, json=body)).json()
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    chunks = await gateway.events(PATH, body | options)
    used = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")]
    assert whole["usage"]["completion_tokens"] == used[-1] == max(used) == len("The answer is")
    assert "".join(whole["choices"][0]["logprobs"]["tokens"]) == whole["choices"][0]["text"] == "The answer "


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_prompt_precedes_the_completion(gateway: RunningGateway, text: TextModel, stream: bool) -> None:
    ids = text.encode_prompt("1+1=").tolist()
    for prompt, echoes in (("2+2=", ["2+2="]), (ids, ["1+1="]), (["a", "b"], ["a", "b"])):
        choices = await completed(gateway, PLAIN | {"prompt": prompt, "echo": True, "stop": "2"}, stream=stream)
        assert [choice["text"] for choice in choices] == [f"{echo}The answer is " for echo in echoes]


@pytest.mark.parametrize("stream", [False, True])
async def test_with_echo_and_no_tokens_the_prompt_alone_comes_back(
    gateway: RunningGateway, text: TextModel, stream: bool
) -> None:
    ids = text.encode_prompt("1+1=").tolist()
    for prompt, echoes in (("2+2=", ["2+2="]), (ids, ["1+1="]), (["a", "bc"], ["a", "bc"])):
        body = PLAIN | {"prompt": prompt, "echo": True, "max_tokens": 0}
        choices = await completed(gateway, body, stream=stream)
        assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [
            (echo, "length") for echo in echoes
        ]
        usage = (await gateway.http.post(PATH, json=body)).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len("".join(echoes)), 0)
    assert gateway.scheduler.requests == []


async def test_a_stop_token_outside_the_vocabulary_is_refused_with_its_range(
    lonely_gateway: RunningGateway, text: TextModel
) -> None:
    outside = text.card.vocab_size
    error = (await lonely_gateway.http.post(PATH, json=PLAIN | {"stop_token_ids": [1, outside]})).json()["error"]
    wrong = f"stop_token_ids must be in 0..{outside - 1}, the model's vocabulary; got {outside}"
    assert (error["message"], error["param"], error["code"]) == (wrong, "stop_token_ids", "invalid_value")
