"""pydantic-ai, the class OpenAIChatModel."""

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel

QUESTION = "A shop has 5 apples and buys 7 more. How many apples are there?"
ANSWER = "The answer is 12."

agent = Agent(OpenAIChatModel("demo"))


class Total(BaseModel):
    total: int


def test_run() -> None:
    assert ANSWER in agent.run_sync(QUESTION).output


def test_stream() -> None:
    async def text() -> str:
        async with agent.run_stream(QUESTION) as stream:
            return await stream.get_output()

    assert ANSWER in asyncio.run(text())


def test_conversation() -> None:
    first = agent.run_sync(QUESTION)
    assert agent.run_sync(QUESTION, message_history=first.all_messages()).output


@pytest.mark.xfail(raises=ModelHTTPError, reason="tools are not served")
def test_output_type() -> None:
    assert Agent(OpenAIChatModel("demo"), output_type=Total).run_sync(QUESTION).output.total == 12
