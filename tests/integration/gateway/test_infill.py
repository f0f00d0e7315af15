"""Completions whose client gives a part of the text: a suffix, or a template with holes."""

from typing import Any

import pytest

from tests.support.gateway import ONE_CELL, RunningGateway

pytestmark = ONE_CELL

BODY: dict[str, Any] = {"model": "tiny-llada", "prompt": "2+2="}
CHAT = "/v1/chat/completions"
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "How many?"}]}
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


async def post(gateway: RunningGateway, path: str, **fields: Any) -> dict[str, Any]:
    reply = await gateway.http.post(path, json=BODY | fields)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def streamed(gateway: RunningGateway, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The chunks."""
    return await gateway.events(path, BODY | fields)


def used(reply: dict[str, Any]) -> tuple[int, ...]:
    return tuple(reply["usage"][name] for name in USAGE)


async def test_a_completion_ends_where_its_suffix_begins(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: "abcdefgh"
    reply = await post(gateway, "/v1/completions", suffix=" end", max_tokens=5)
    assert (reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]) == ("abcde", "stop")
    assert used(reply) == (8, 5, 13)  # the suffix is input


async def test_a_completion_may_end_before_its_suffix(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: "abc"
    reply = await post(gateway, "/v1/completions", suffix=" end", max_tokens=5, logprobs=0)
    assert reply["choices"][0]["text"] == "abc"
    assert reply["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]
    assert used(reply) == (8, 3, 11)


@pytest.mark.parametrize(
    ("answer", "filled", "completion_tokens"),
    [("12345", "x=12, y=345.", 5), ("12", "x=12, y=.", 5), ("1", "x=1, y=.", 5)],
)
async def test_a_template_comes_back_filled_in_and_streams_alike(
    gateway: RunningGateway, answer: str, filled: str, completion_tokens: int
) -> None:
    """An end-of-text token within a hole ends neither the text nor the hole."""
    gateway.scheduler.answer = lambda _: answer
    fields: dict[str, Any] = {"template": "x=<mask:2>, y=<mask:3>.", "stream_options": {"include_usage": True}}
    reply = await post(gateway, "/v1/completions", template=fields["template"])
    assert (reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]) == (filled, "stop")
    assert used(reply) == (4 + 7, completion_tokens, 4 + 7 + completion_tokens)
    *chunks, last = await streamed(gateway, "/v1/completions", **fields)
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == filled
    assert used(last) == used(reply)


async def test_the_usage_of_a_stream_counts_the_tokens_that_the_model_wrote(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: "12345"
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await streamed(gateway, "/v1/completions", template="x=<mask:2>, y=<mask:3>.", stream_options=options)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks if chunk["usage"]} == {11}
    assert max(chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["usage"]) == 5


async def test_a_template_s_echo_is_its_prompt(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: "4"
    reply = await post(gateway, "/v1/completions", template="<mask:1>.", echo=True, n=2)
    assert [choice["text"] for choice in reply["choices"]] == ["2+2=4.", "2+2=4."]


async def test_fim_replies_as_mercury_and_as_mistral(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: "abc"
    fields: dict[str, Any] = {"suffix": " end", "max_tokens": 3, "random_seed": 7, "temperature": 0.5}
    reply = await post(gateway, "/v1/fim/completions", **fields)
    [choice] = reply["choices"]
    assert (choice["text"], choice["message"]) == ("abc", {"role": "assistant", "content": "abc"})
    assert gateway.scheduler.requests[-1].seed == 7
    chunks = await streamed(gateway, "/v1/fim/completions", **fields)
    texts = [(choice["text"], choice["delta"]["content"]) for chunk in chunks for choice in chunk["choices"]]
    assert ["".join(each) for each in zip(*texts, strict=True)] == ["abc", "abc"]


async def test_a_chat_fills_in_a_template(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: "12345"
    fields: dict[str, Any] = {**MESSAGES, "template": "x=<mask:2>, y=<mask:3>."}
    reply = await post(gateway, CHAT, **fields)
    assert reply["choices"][0]["message"]["content"] == "x=12, y=345."
    assert used(reply)[1] == 5
    chunks = await streamed(gateway, CHAT, **fields)
    deltas = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(deltas) == "x=12, y=345."


async def test_a_canvas_begins_with_the_given_tokens(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: "12345"
    sent = await streamed(gateway, CHAT, **MESSAGES, template="x=<mask:2>, y=<mask:3>.", canvas=True)
    first, *others = [event["cells"] for event in sent if event["object"] == "dilaserve.canvas"]
    pinned = {cell["position"]: cell["text"] for cell in first if cell.get("pinned")}
    assert pinned == dict(zip((0, 1, 4, 5, 6, 7, 11), "x=, y=.", strict=True)) | dict.fromkeys(range(12, 32), "")
    assert not [cell for cells in others for cell in cells if cell.get("pinned")]
    written = {cell["position"]: cell["text"] for cells in (first, *others) for cell in cells}
    assert "".join(written[position] for position in range(32)) == "x=12, y=345."


async def test_fim_without_a_suffix_continues_its_prompt(gateway: RunningGateway) -> None:
    await post(gateway, "/v1/fim/completions")
    assert gateway.scheduler.requests[-1].pinned == b""
