"""Further Python clients, a few tests each: `make clients` runs those whose names begin with a client's, in its own
environment."""

import asyncio
import os
import re
from pathlib import Path
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


def test_openai_agents() -> None:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    server = AsyncOpenAI(base_url=URL, api_key="any")
    chat = OpenAIChatCompletionsModel(model="demo-block", openai_client=server)
    for model in (chat, "demo-block"):  # the second: the Responses API
        assert ANSWER in Runner.run_sync(Agent(name="a", model=model), QUESTION).final_output
    agent = Agent(name="a", model=chat, tools=[function_tool(calculator)])
    assert ANSWER in Runner.run_sync(agent, QUESTION).final_output


def test_haystack() -> None:
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage

    generator = OpenAIChatGenerator(model="demo-block", api_base_url=URL)
    assert ANSWER in generator.run([ChatMessage.from_user(QUESTION)])["replies"][0].text


def test_semantic_kernel() -> None:
    from openai import AsyncOpenAI
    from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
    from semantic_kernel.contents import ChatHistory

    service = OpenAIChatCompletion("demo-block", async_client=AsyncOpenAI(base_url=URL, api_key="any"))
    history = ChatHistory()
    history.add_user_message(QUESTION)
    reply = asyncio.run(service.get_chat_message_content(history, OpenAIChatPromptExecutionSettings()))
    assert ANSWER in str(reply)


def test_autogen() -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": "unknown",
    }
    client = OpenAIChatCompletionClient(model="demo-block", base_url=URL, api_key="any", model_info=info)
    agent = AssistantAgent("a", client, system_message=None)
    assert ANSWER in asyncio.run(agent.run(task=QUESTION)).messages[-1].content


def test_google_adk() -> None:
    from google.adk.agents import LlmAgent
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    model = LiteLlm(model="hosted_vllm/demo-block", api_base=URL, api_key="any")
    runner = InMemoryRunner(LlmAgent(name="a", model=model), app_name="app")

    async def ask() -> str:
        session = await runner.session_service.create_session(app_name="app", user_id="u")
        asked = types.Content(role="user", parts=[types.Part(text=QUESTION)])
        events = runner.run_async(user_id="u", session_id=session.id, new_message=asked)
        return "".join([event.content.parts[0].text async for event in events if event.content])

    assert "answer is" in asyncio.run(ask())  # the system message that it adds may change the number


def test_magentic() -> None:
    from magentic import OpenaiChatModel, prompt

    @prompt("{question}", model=OpenaiChatModel("demo-block", base_url=URL, api_key="any"))
    def ask(question: str) -> str: ...

    assert ANSWER in ask(QUESTION)


def test_langgraph() -> None:
    from langchain.agents import create_agent
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(model="demo-block", base_url=SERVER, api_key="any", max_tokens=64)
    agent = create_agent(model, [calculator])
    assert ANSWER in agent.invoke({"messages": MESSAGES})["messages"][-1].text


def run_command(*command: str, **environ: str) -> str:
    """The output of a command of the client's environment, with a home of its own."""
    import subprocess
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        for name, value in environ.items():
            if name.endswith(".yaml"):
                Path(home, name).write_text(value)
        variables = {name: value for name, value in environ.items() if name.isupper()}
        own = os.environ | {"HOME": home, "LLM_USER_PATH": home, **variables}
        program = Path(sys.executable).with_name(command[0])
        done = subprocess.run(
            [program, *command[1:]], env=own, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_llm() -> None:
    model = f"- model_id: demo\n  model_name: demo-block\n  api_base: {URL}\n"
    files = {"extra-openai-models.yaml": model}
    assert ANSWER in run_command("llm", "-m", "demo", "--key", "any", QUESTION, **files)


def test_shell_gpt() -> None:
    variables = {"API_BASE_URL": URL, "DEFAULT_MODEL": "demo-block", "OPENAI_USE_FUNCTIONS": "false"}
    assert "answer is" in run_command("sgpt", "--no-cache", QUESTION, **variables)  # it adds a system message


def test_locust(tmp_path: Path) -> None:
    file = tmp_path / "load.py"
    body = {"model": "demo-block", "messages": MESSAGES, "max_tokens": 64}
    file.write_text(
        "from locust import HttpUser, task\n"
        "class User(HttpUser):\n"
        "    @task\n"
        f"    def ask(self): self.client.post('/v1/chat/completions', json={body})\n"
    )
    options = ("--headless", "--users", "2", "--spawn-rate", "2", "--run-time", "4s", "--host", SERVER, "--json")
    shown = run_command("locust", *options, "--locustfile", str(file))  # its status is 1 if a request fails
    assert re.search(r'"num_requests": [1-9]', shown)


def test_mirascope() -> None:
    from mirascope import llm
    from pydantic import BaseModel

    class Total(BaseModel):
        total: int

    llm.register_provider("openai:completions", scope="openai/", base_url=URL, api_key="any")
    llm.register_provider("anthropic", scope="anthropic/", base_url=SERVER, api_key="any")
    for provider in ("openai", "anthropic"):

        @llm.call(f"{provider}/demo-block", max_tokens=64)
        def ask() -> str:
            return QUESTION

        @llm.call(f"{provider}/demo-block", max_tokens=64, format=llm.format(Total, mode="strict"))
        def ask_in_json() -> str:
            return IN_JSON

        assert ANSWER in ask().text()
        assert ask_in_json().parse() == Total(total=12)


def test_outlines() -> None:
    import json

    import openai
    import outlines
    from pydantic import BaseModel

    class Total(BaseModel):
        total: int

    server = openai.OpenAI(base_url=URL, api_key="any")
    model = outlines.from_openai(server, "demo-block")
    assert ANSWER in model(QUESTION, max_tokens=64)
    assert json.loads(model(IN_JSON, Total, max_tokens=64)) == {"total": 12}
    for kind in (outlines.from_vllm, outlines.from_sglang):
        pattern = outlines.types.Regex("The answer is [0-9]{2}")
        assert re.fullmatch("The answer is [0-9]{2}", kind(server, "demo-block")(QUESTION, pattern, max_tokens=32))


def test_strands() -> None:
    from strands import Agent
    from strands.models.openai import OpenAIModel

    model = OpenAIModel(client_args={"base_url": URL, "api_key": "any"}, model_id="demo-block")
    assert ANSWER in str(Agent(model=model, callback_handler=None)(QUESTION))
