"""Log-probabilities of the tokens of a text, whole and streamed, in OpenAI's shapes."""

from math import log
from typing import Any

import numpy as np
import pytest

from shared.text import TextModel
from tests.support.gateway import CHAT, ONE_CELL, RunningGateway
from tests.support.scheduler import ANSWER, confidences_of

pytestmark = ONE_CELL

TEXT: dict[str, Any] = {"model": "tiny-llada", "prompt": "2+2=", "max_tokens": 32}


def expected(text: str) -> list[tuple[str, Any]]:
    """Each character is a token."""
    logprobs = np.log(confidences_of(np.arange(len(text)))).tolist()
    return [(token, pytest.approx(logprob)) for token, logprob in zip(text, logprobs, strict=True)]


@pytest.mark.parametrize(("stop", "kept", "k"), [(None, ANSWER, 0), ("swer", "The an", 0), (None, ANSWER, 3)])
async def test_a_chat_has_the_log_probability_of_each_token(
    gateway: RunningGateway, stop: str | None, kept: str, k: int
) -> None:
    """With the `k` most probable tokens."""
    wanted: Any = CHAT | {"logprobs": True, "top_logprobs": k, "stop": stop}
    async with gateway.openai() as api:
        whole: Any = await api.chat.completions.create(**wanted)
        chunks = [chunk.choices[0] async for chunk in await api.chat.completions.create(**wanted, stream=True)]
    for choices in (whole.choices, chunks):
        tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content or []]
        assert [(token.token, token.logprob) for token in tokens] == expected(kept)
        found = [[(each.token, each.logprob) for each in token.top_logprobs] for token in tokens]
        assert found == alternatives(gateway.scheduler.text, k)[: len(kept)]
        each_token = [each for token in tokens for each in (token, *token.top_logprobs)]
        whole_characters = [each for each in each_token if "\ufffd" not in each.token]
        assert [each.bytes for each in whole_characters] == [list(each.token.encode()) for each in whole_characters]
    for chunk in chunks:
        own = chunk.logprobs.content if chunk.logprobs else None
        assert "".join(token.token for token in own or []) == (chunk.delta.content or "")


async def test_a_plain_completion_has_the_log_probability_of_each_token(gateway: RunningGateway) -> None:
    """With the most probable tokens, by their texts."""
    async with gateway.openai() as api:
        whole = await api.completions.create(**TEXT, logprobs=2)
        stream = await api.completions.create(**TEXT, logprobs=2, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
    parts = [whole.choices[0].logprobs], [chunk.logprobs for chunk in chunks if chunk.logprobs]
    for found in parts:
        tokens = [token for part in found if part for token in part.tokens or []]
        logprobs = [logprob for part in found if part for logprob in part.token_logprobs or []]
        assert list(zip(tokens, logprobs, strict=True)) == expected(ANSWER)
        assert [offset for part in found if part for offset in part.text_offset or []] == list(range(len(ANSWER)))
        top = [each for part in found if part for each in part.top_logprobs or []]
        assert top == [dict(each) for each in alternatives(gateway.scheduler.text, 2)]


def alternatives(text: TextModel, k: int) -> list[list[tuple[str, Any]]]:
    """Of the answer: the i-th alternative has an id that is i higher, and is 2^i times less probable."""
    tokens = text.encode_prompt(ANSWER).tolist()
    return [
        [(text.decode([token + i]), pytest.approx(log(first / 2**i))) for i in range(k)]
        for token, first in zip(tokens, confidences_of(np.arange(len(tokens))).tolist(), strict=True)
    ]


async def test_only_a_client_that_asks_gets_them(gateway: RunningGateway) -> None:
    async with gateway.openai() as api:
        replies = [await api.chat.completions.create(**CHAT, logprobs=wanted) for wanted in (None, False, True)]
    assert [reply.choices[0].logprobs is not None for reply in replies] == [False, False, True]
    assert [request.logprobs for request in gateway.scheduler.requests] == [False, False, True]
    assert replies[2].choices[0].logprobs is not None
    assert (replies[2].choices[0].logprobs.content or [])[0].logprob == pytest.approx(log(0.5))
