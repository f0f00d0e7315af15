"""Probabilities of tokens: those of a text in OpenAI's shapes, whole and streamed, and OpenAI's Decisions API."""

from math import log
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.types import Decision

from shared.text import TextModel
from tests.support.gateway import CHAT, MODEL, ONE_CELL, RunningGateway
from tests.support.scheduler import ANSWER, AnsweringScheduler, confidences_of

pytestmark = ONE_CELL

TEXT: dict[str, Any] = {"model": "tiny-llada", "prompt": "2+2=", "max_tokens": 32}


def expected(text: str) -> list[tuple[str, Any]]:
    """Each character is a token."""
    logprobs = np.log(confidences_of(np.arange(len(text)))).tolist()
    return [(token, pytest.approx(logprob)) for token, logprob in zip(text, logprobs, strict=True)]


@pytest.mark.parametrize(("stop", "kept", "k"), [(None, ANSWER, 0), ("swer", "The an", 0), (None, ANSWER, 3)])
async def test_a_chat_has_the_log_probability_of_each_token(
    gateway: RunningGateway, stop: str | None, kept: str, k: int
) -> None:
    """With the `k` most probable tokens."""
    wanted: Any = CHAT | {"logprobs": True, "top_logprobs": k, "stop": stop}
    async with gateway.openai() as api:
        whole: Any = await api.chat.completions.create(**wanted)
        chunks = [chunk.choices[0] async for chunk in await api.chat.completions.create(**wanted, stream=True)]
    for choices in (whole.choices, chunks):
        tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content or []]
        assert [(token.token, token.logprob) for token in tokens] == expected(kept)
        found = [[(each.token, each.logprob) for each in token.top_logprobs] for token in tokens]
        assert found == alternatives(gateway.scheduler.text, k)[: len(kept)]
        each_token = [each for token in tokens for each in (token, *token.top_logprobs)]
        whole_characters = [each for each in each_token if "\ufffd" not in each.token]
        assert [each.bytes for each in whole_characters] == [list(each.token.encode()) for each in whole_characters]
    for chunk in chunks:
        own = chunk.logprobs.content if chunk.logprobs else None
        assert "".join(token.token for token in own or []) == (chunk.delta.content or "")


async def test_a_plain_completion_has_the_log_probability_of_each_token(gateway: RunningGateway) -> None:
    """With the most probable tokens, by their texts."""
    async with gateway.openai() as api:
        whole = await api.completions.create(**TEXT, logprobs=2)
        stream = await api.completions.create(**TEXT, logprobs=2, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
    parts = [whole.choices[0].logprobs], [chunk.logprobs for chunk in chunks if chunk.logprobs]
    for found in parts:
        tokens = [token for part in found if part for token in part.tokens or []]
        logprobs = [logprob for part in found if part for logprob in part.token_logprobs or []]
        assert list(zip(tokens, logprobs, strict=True)) == expected(ANSWER)
        assert [offset for part in found if part for offset in part.text_offset or []] == list(range(len(ANSWER)))
        top = [each for part in found if part for each in part.top_logprobs or []]
        assert top == [dict(each) for each in alternatives(gateway.scheduler.text, 2)]


def alternatives(text: TextModel, k: int) -> list[list[tuple[str, Any]]]:
    """Of the answer: the i-th alternative has an id that is i higher, and is 2^i times less probable."""
    tokens = text.encode_prompt(ANSWER).tolist()
    return [
        [(text.decode([token + i]), pytest.approx(log(first / 2**i))) for i in range(k)]
        for token, first in zip(tokens, confidences_of(np.arange(len(tokens))).tolist(), strict=True)
    ]


async def test_only_a_client_that_asks_gets_them(gateway: RunningGateway) -> None:
    async with gateway.openai() as api:
        replies = [await api.chat.completions.create(**CHAT, logprobs=wanted) for wanted in (None, False, True)]
    assert [reply.choices[0].logprobs is not None for reply in replies] == [False, False, True]
    assert [request.logprobs for request in gateway.scheduler.requests] == [False, False, True]
    assert replies[2].choices[0].logprobs is not None
    assert (replies[2].choices[0].logprobs.content or [])[0].logprob == pytest.approx(log(0.5))


INPUT = "The parcel arrived broken."
TEAM = """Which team handles it?
A: "returns" - broken goods
B: "sales"
C: true
Answer with the letter of one option only."""
QUESTIONS: list[Any] = [
    {"type": "predicate", "name": "broken", "instructions": "The parcel is broken."},
    {
        "type": "choice",
        "instructions": "Which team handles it?",
        "choices": [{"value": "returns", "description": "broken goods"}, {"value": "sales"}, {"value": True}],
    },
    {
        "type": "score",
        "name": "anger",
        "instructions": [{"type": "input_text", "text": "How angry?"}],
        "levels": [{"label": "calm"}, {"label": "annoyed"}, {"label": "furious"}],
    },
]


def answers_of(decision: Decision) -> list[dict[str, Any]]:
    Decision.model_validate(decision.to_dict())  # every required field is present
    answers: list[dict[str, Any]] = decision.model_dump()["answers"]
    return answers


async def test_a_question_is_a_choice_of_letters_with_the_probability_of_each_option(
    client: AsyncOpenAI, scheduler: AnsweringScheduler, text: TextModel
) -> None:
    scheduler.answer = lambda request: request.choices[0]
    decision = await client.decisions.create(model=MODEL, input=INPUT, questions=QUESTIONS)
    broken, team, anger = answers_of(decision)
    assert (broken["type"], broken["name"], broken["probability"]) == ("predicate", "broken", 0.5)
    assert (team["type"], team["name"], team["choice"]) == ("choice", None, "returns")
    assert team["probabilities"] == [
        {"value": "returns", "probability": 0.5},
        {"value": "sales", "probability": 0.25},
        {"value": True, "probability": 0.25},
    ]
    assert team["confidence"] == pytest.approx(0.5)  # of the one token at its step
    assert (anger["type"], anger["name"], anger["score"]) == ("score", "anger", 0.75)
    assert [(each["value"], each["label"]) for each in anger["probabilities"]] == [
        (0, "calm"),
        (1, "annoyed"),
        (2, "furious"),
    ]
    served = {each["dilaserve"]["request_id"] for each in (broken, team, anger)}
    assert served == {request.request_id for request in scheduler.requests}
    assert decision.usage.output_tokens == 3
    assert decision.usage.total_tokens == decision.usage.input_tokens + 3
    assert [request.choices for request in scheduler.requests] == [["A", "B"], ["A", "B", "C"], ["A", "B", "C"]]
    assert all(request.output_tokens == request.block_length for request in scheduler.requests)
    prompts = [text.decode(text.encode_request(request)) for request in scheduler.requests]
    assert all(f"{INPUT}\n\n" in prompt for prompt in prompts)
    assert TEAM in prompts[1]


async def test_the_input_may_be_a_conversation(client: AsyncOpenAI, gateway: RunningGateway, text: TextModel) -> None:
    gateway.scheduler.answer = lambda request: (request.choices or ["A"])[0]
    turns = [("system", "Be fair."), ("user", INPUT), ("assistant", "Sorry!")]
    messages: Any = [{"role": role, "content": content} for role, content in turns]
    for given, chat in (
        (messages, [*messages, {"role": "user", "content": TEAM}]),
        (messages[:2], [messages[0], {"role": "user", "content": f"{INPUT}\n\n{TEAM}"}]),
    ):
        await client.decisions.create(model=MODEL, input=given, questions=QUESTIONS[1:2])
        await gateway.http.post("/v1/chat/completions", json={"model": MODEL, "messages": chat})
    decided, chatted = gateway.scheduler.requests[::2], gateway.scheduler.requests[1::2]
    assert [request.prompt_ids for request in decided] == [request.prompt_ids for request in chatted]


async def test_many_options_are_numbered(client: AsyncOpenAI, scheduler: AnsweringScheduler) -> None:
    scheduler.answer = lambda _: "1"
    values = [str(i) for i in range(40)]
    question: Any = {**QUESTIONS[1], "choices": [{"value": value} for value in values]}
    decision = await client.decisions.create(model=MODEL, input=INPUT, questions=[question])
    assert scheduler.requests[0].choices == [str(i + 1) for i in range(40)]
    [answer] = answers_of(decision)
    assert (answer["choice"], [each["value"] for each in answer["probabilities"]]) == ("0", values)
