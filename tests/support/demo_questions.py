"""Questions that the demo model answers, and chat requests with them."""

from typing import Any

import httpx

MODEL = "demo"
NAMES = ["Tom", "Anna", "Ben", "Mia", "Sam"]
THINGS = ["apples", "pears", "books", "coins"]


def question(i: int) -> str:
    return f"{NAMES[i % 5]} has {5 + i % 17} {THINGS[i % 4]} and buys {2 + i % 11} more. How many are there now?"


def chat_request(i: int, **options: Any) -> dict[str, Any]:
    """The body of a chat completion that asks question `i`."""
    message = {"role": "user", "content": question(i)}
    return {"model": MODEL, "messages": [message], "max_tokens": 64, "slo_ms": 120_000, **options}


async def answer(http: httpx.AsyncClient, i: int) -> str:
    """The text of the reply to question `i`."""
    reply = await http.post("/v1/chat/completions", json=chat_request(i))
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])
