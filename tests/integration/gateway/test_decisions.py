"""OpenAI's Decisions API, with OpenAI's client."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types import Decision

from shared.text import TextModel
from tests.support.gateway import ONE_CELL, RunningGateway
from tests.support.scheduler import AnsweringScheduler

pytestmark = ONE_CELL

MODEL, PATH = "tiny-llada", "/v1/decisions"
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


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: RunningGateway) -> AsyncIterator[AsyncOpenAI]:
    async with gateway.openai() as client:
        yield client


def prompts(scheduler: AnsweringScheduler, text: TextModel) -> list[str]:
    return [text.decode(text.encode_request(request)) for request in scheduler.requests]


def answers_of(decision: Decision) -> list[dict[str, Any]]:
    Decision.model_validate(decision.to_dict())  # every required field is present
    answers: list[dict[str, Any]] = decision.model_dump()["answers"]
    return answers


async def test_each_question_is_answered_with_the_probability_of_each_option(
    client: AsyncOpenAI, scheduler: AnsweringScheduler
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


async def test_a_question_is_a_choice_of_letters_in_one_step_after_the_input(
    client: AsyncOpenAI, scheduler: AnsweringScheduler, text: TextModel
) -> None:
    scheduler.answer = lambda request: request.choices[0]
    await client.decisions.create(model=MODEL, input=INPUT, questions=QUESTIONS)
    assert [request.choices for request in scheduler.requests] == [["A", "B"], ["A", "B", "C"], ["A", "B", "C"]]
    assert all(request.output_tokens == request.block_length for request in scheduler.requests)
    assert all(f"{INPUT}\n\n" in prompt for prompt in prompts(scheduler, text))
    assert TEAM in prompts(scheduler, text)[1]


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


CHOICE = QUESTIONS[1]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": None}, "input", "input must be a list"),
        ({"input": []}, "input", "at least 1 items"),
        ({"questions": []}, "questions", "at least 1 items"),
        ({"questions": [QUESTIONS[0]] * 129}, "questions", "at most 128 items"),
        ({"questions": [{"type": "noul", "instructions": "a"}]}, "questions[0].type", "predicate, choice, score"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions", "is required"),
        ({"questions": [{**CHOICE, "choices": [{"value": "a"}]}]}, "questions[0].choices", "at least 2 items"),
        ({"questions": [{**CHOICE, "choices": [{"value": "a"}] * 2}]}, "questions[0].choices", "different values"),
        ({"questions": [{**CHOICE, "choices": [{"value": 1}] * 2}]}, "questions[0].choices[0].value", "a string"),
        ({"questions": [{**QUESTIONS[2], "levels": [{"label": "a"}] * 11}]}, "questions[0].levels", "at most 10 items"),
        ({"stream": True}, "stream", "must be false"),
        ({"temperature": 1.0}, "temperature", "is not supported"),
        ({"messages": []}, "messages", "messages is not supported"),
        ({"input": "a" * 2000}, "input", "the model's maximum is"),
    ],
)
async def test_wrong_fields_are_named(
    gateway: RunningGateway, fields: dict[str, Any], param: str, message: str
) -> None:
    body = {"model": MODEL, "input": INPUT, "questions": QUESTIONS, **fields}
    reply = await gateway.http.post(PATH, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error
    assert message in error["message"]
    assert gateway.scheduler.requests == []
