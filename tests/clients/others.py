"""Further Python clients, a few tests each: `make clients` runs those whose names begin with a client's, in its own
environment."""

import asyncio
import os
from typing import Any

URL = os.environ["OPENAI_BASE_URL"]
SERVER = os.environ["ANTHROPIC_BASE_URL"]  # the address without /v1
QUESTION = "A shop has 5 apples and buys 7 more. How many apples are there?"
IN_JSON = f'{QUESTION} Reply in JSON with the keys "total".'
ANSWER = "The answer is 12."
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


def calculator(expression: str) -> str:
    """Calculate."""
    return "12" if expression == "5+7" else f"unexpected: {expression}"


def test_agno() -> None:
    from agno.agent import Agent
    from agno.models.openai import OpenAILike

    model = OpenAILike(id="demo-block", base_url=URL, api_key="any")
    assert ANSWER in Agent(model=model).run(QUESTION).content
    assert "".join(part.content or "" for part in Agent(model=model).run(QUESTION, stream=True)).count(ANSWER)


def test_agno_tool() -> None:
    from agno.agent import Agent
    from agno.models.openai import OpenAILike

    model = OpenAILike(id="demo-block", base_url=URL, api_key="any")
    assert ANSWER in Agent(model=model, tools=[calculator]).run(QUESTION).content


def test_crewai() -> None:
    from crewai import LLM

    llm = LLM(model="openai/demo-block", base_url=URL, api_key="any")
    assert ANSWER in llm.call(MESSAGES)
    assert ANSWER in LLM(model="openai/demo-block", base_url=URL, api_key="any", stop=["\n\n\n"] * 6).call(MESSAGES)


def test_dspy() -> None:
    import dspy

    lm = dspy.LM("openai/demo-block", api_base=URL, api_key="any", cache=False)
    assert ANSWER in lm(messages=MESSAGES)[0]


def test_huggingface_hub() -> None:
    import json

    from huggingface_hub import InferenceClient

    client = InferenceClient(base_url=SERVER, api_key="any")
    reply = client.chat_completion(MESSAGES, model="demo-block", max_tokens=64)
    assert ANSWER in reply.choices[0].message.content
    parts = client.chat_completion(MESSAGES, model="demo-block", max_tokens=64, stream=True)
    assert ANSWER in "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "total", "schema": SCHEMA}}
    asked = [{"role": "user", "content": IN_JSON}]
    reply = client.chat_completion(asked, model="demo-block", max_tokens=64, response_format=wanted)
    assert json.loads(reply.choices[0].message.content) == {"total": 12}


def test_inspect_ai() -> None:
    from inspect_ai.model import get_model

    model = get_model("openai-api/local/demo-block", base_url=URL, api_key="any")
    assert ANSWER in asyncio.run(model.generate(QUESTION)).completion


def test_mistralai() -> None:
    from mistralai.client import Mistral

    client = Mistral(server_url=SERVER, api_key="any")
    reply = client.chat.complete(model="demo-block", messages=MESSAGES, random_seed=7)
    assert ANSWER in reply.choices[0].message.content
    assert [model.id for model in client.models.list().data] == ["demo-block"]


def test_mistralai_tools() -> None:
    from mistralai.client import Mistral

    client = Mistral(server_url=SERVER, api_key="any")
    parameters = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
    tools: list[Any] = [{"type": "function", "function": {"name": "calculator", "parameters": parameters}}]
    message = (
        client.chat.complete(model="demo-block", messages=MESSAGES, tools=tools, tool_choice="any").choices[0].message
    )
    [call] = message.tool_calls
    result = {"role": "tool", "content": "12", "tool_call_id": call.id, "name": "calculator"}
    reply = client.chat.complete(model="demo-block", messages=[*MESSAGES, message, result], tools=tools)
    assert ANSWER in reply.choices[0].message.content


def test_smolagents() -> None:
    from smolagents import ChatMessage, MessageRole, OpenAIModel

    model = OpenAIModel(model_id="demo-block", api_base=URL, api_key="any")
    asked = [ChatMessage(role=MessageRole.USER, content=QUESTION)]
    assert ANSWER in model.generate(asked, stop_sequences=["Observation:", "<end_code>"]).content
    assert ANSWER in "".join(part.content or "" for part in model.generate_stream(asked))
