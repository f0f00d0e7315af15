"""The judge's client against a fake server."""

import pytest

from dilaserve.quality.judge import Judge
from shared.errors import BadInput
from tests.support.judge_server import judge_server

GOOD = '{"score": 8, "explanation": "Right."}'


async def test_an_invalid_answer_is_requested_once_more_then_left_unscored() -> None:
    def reply(content: str, times: int) -> str | None:
        if "empty" in content:
            return None
        if "never" in content or ("second" in content and times == 0):
            return "Maybe an 8."
        return GOOD

    with judge_server(reply) as server:
        scores = await Judge(server.url, "strict").scores(
            [("first", "a"), ("second", "b"), ("never", "c"), ("empty", "d")]
        )
    assert scores == [8, 8, None, None]
    assert len(server.bodies) == 1 + 2 + 2 + 2
    assert {body["model"] for body in server.bodies} == {"strict"}
    assert {body["temperature"] for body in server.bodies} == {0}


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_url_works_with_and_without_v1(suffix: str) -> None:
    with judge_server(lambda _content, _times: GOOD) as server:
        judge = Judge(server.url.removesuffix("/v1") + suffix, "any")
        await judge.check()
        assert await judge.scores([("p", "r")]) == [8]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "no address"])
async def test_a_url_without_a_server_is_rejected(url: str) -> None:
    with pytest.raises(BadInput, match="--judge-url"):
        await Judge(url, "any").check()


async def test_an_unavailable_judge_leaves_replies_unscored() -> None:
    with judge_server(lambda _content, _times: GOOD) as server:
        judge = Judge(server.url, "any")
    assert await judge.scores([("p", "r")]) == [None]
