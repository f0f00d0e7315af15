"""LlamaIndex, the class OpenAILike."""

import asyncio
import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

QUESTION = "A shop has 5 apples and buys 7 more. How many apples are there?"
ANSWER = "The answer is 12."
URL = os.environ["OPENAI_BASE_URL"]

model = OpenAILike(model="demo-block", api_base=URL, api_key="any")
chat = OpenAILike(model="demo-block", api_base=URL, api_key="any", is_chat_model=True)


def test_chat() -> None:
    assert ANSWER in chat.chat([ChatMessage(QUESTION)]).message.content


def test_chat_stream() -> None:
    *_, last = chat.stream_chat([ChatMessage(QUESTION)])
    assert ANSWER in last.message.content


def test_async_chat() -> None:
    assert ANSWER in asyncio.run(chat.achat([ChatMessage(QUESTION)])).message.content


def test_completion() -> None:
    assert model.complete(QUESTION).text


def test_completion_stream() -> None:
    *_, last = model.stream_complete(QUESTION)
    assert last.text
