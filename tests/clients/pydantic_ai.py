"""pydantic-ai, the class OpenAIChatModel."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

QUESTION = "A shop has 5 apples and buys 7 more. How many apples are there?"
ANSWER = "The answer is 12."

agent = Agent(OpenAIChatModel("demo-block"))


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


def test_tool() -> None:
    calculating = Agent(OpenAIChatModel("demo-block"))
    asked = []

    @calculating.tool_plain
    def calculator(expression: str) -> str:
        asked.append(expression)
        return "12"

    assert ANSWER in calculating.run_sync(QUESTION).output
    assert asked == ["5+7"]


def test_output_type() -> None:
    assert Agent(OpenAIChatModel("demo-block"), output_type=Total).run_sync(QUESTION).output.total == 12
