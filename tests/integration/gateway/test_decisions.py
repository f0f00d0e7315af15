"""OpenAI's Decisions API, with OpenAI's client."""

from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types import Decision

from shared.text import TextModel
from tests.support.gateway import MODEL, ONE_CELL, RunningGateway
from tests.support.scheduler import AnsweringScheduler

pytestmark = ONE_CELL

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
