"""LiteLLM, with its providers openai and hosted_vllm."""

import os

import litellm
import pytest
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "A shop has 5 apples and buys 7 more. How many apples are there?"}]
ANSWER = "The answer is 12."
URL = os.environ["OPENAI_BASE_URL"]


class Total(BaseModel):
    total: int


def test_openai() -> None:
    assert ANSWER in litellm.completion("openai/demo", MESSAGES).choices[0].message.content


def test_hosted_vllm() -> None:
    reply = litellm.completion("hosted_vllm/demo", MESSAGES, api_base=URL, api_key="any")
    assert ANSWER in reply.choices[0].message.content


def test_stream() -> None:
    chunks = litellm.completion("openai/demo", MESSAGES, stream=True)
    assert ANSWER in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_slo_ms() -> None:
    reply = litellm.completion("openai/demo", MESSAGES, extra_body={"slo_ms": 60_000})
    assert ANSWER in reply.choices[0].message.content


def test_top_p() -> None:
    assert litellm.completion("openai/demo", MESSAGES, temperature=0.7, top_p=0.9, seed=1).choices


def test_returned_message() -> None:
    first = litellm.completion("openai/demo", MESSAGES).choices[0].message
    assert litellm.completion("openai/demo", [*MESSAGES, first, *MESSAGES]).choices[0].message.content


def test_completion() -> None:
    assert litellm.text_completion(model="text-completion-openai/demo", prompt="2 + 3 = ?").choices[0].text


@pytest.mark.xfail(raises=litellm.BadRequestError, reason="JSON mode is not served")
def test_json() -> None:
    assert litellm.completion("openai/demo", MESSAGES, response_format=Total).choices[0].message.content


@pytest.mark.xfail(raises=litellm.BadRequestError, reason="tools are not served")
def test_tools() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    assert litellm.completion("openai/demo", MESSAGES, tools=[tool]).choices
