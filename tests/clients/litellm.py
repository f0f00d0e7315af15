"""LiteLLM, with its providers openai and hosted_vllm."""

import os

import litellm
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "A shop has 5 apples and buys 7 more. How many apples are there?"}]
ANSWER = "The answer is 12."
URL = os.environ["OPENAI_BASE_URL"]


class Total(BaseModel):
    total: int


def test_openai() -> None:
    assert ANSWER in litellm.completion("openai/demo-block", MESSAGES).choices[0].message.content


def test_hosted_vllm() -> None:
    reply = litellm.completion("hosted_vllm/demo-block", MESSAGES, api_base=URL, api_key="any")
    assert ANSWER in reply.choices[0].message.content


def test_stream() -> None:
    chunks = litellm.completion("openai/demo-block", MESSAGES, stream=True)
    assert ANSWER in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_slo_ms() -> None:
    reply = litellm.completion("openai/demo-block", MESSAGES, extra_body={"slo_ms": 60_000})
    assert ANSWER in reply.choices[0].message.content


def test_top_p() -> None:
    assert litellm.completion("openai/demo-block", MESSAGES, temperature=0.7, top_p=0.9, seed=1).choices


def test_returned_message() -> None:
    first = litellm.completion("openai/demo-block", MESSAGES).choices[0].message
    assert litellm.completion("openai/demo-block", [*MESSAGES, first, *MESSAGES]).choices[0].message.content


def test_completion() -> None:
    assert litellm.text_completion(model="text-completion-openai/demo-block", prompt="2 + 3 = ?").choices[0].text


def test_json() -> None:
    asked = [{"role": "user", "content": MESSAGES[0]["content"] + ' Reply in JSON with the keys "total".'}]
    reply = litellm.completion("openai/demo-block", asked, response_format=Total)
    assert Total.model_validate_json(reply.choices[0].message.content).total == 12


def test_tools() -> None:
    parameters = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
    tool = {"type": "function", "function": {"name": "calculator", "parameters": parameters}}
    reply = litellm.completion("openai/demo-block", MESSAGES, tools=[tool])
    assert reply.choices[0].message.tool_calls[0].function.name == "calculator"
