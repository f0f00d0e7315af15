"""Completions whose client gives a part of the text, such as a suffix or a template with holes, or the text's end."""

from typing import Any

import pytest

from shared.text import TextModel
from tests.support.gateway import ONE_CELL, RunningGateway
from tests.support.scheduler import ANSWER

pytestmark = ONE_CELL

BODY: dict[str, Any] = {"model": "tiny-llada", "prompt": "2+2="}
CHAT = "/v1/chat/completions"
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "How many?"}]}
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
TEMPLATE = "x=<mask:2>, y=<mask:3>."
USAGE_IN_ALL = {"include_usage": True, "continuous_usage_stats": True}


async def post(gateway: RunningGateway, path: str, **fields: Any) -> dict[str, Any]:
    reply = await gateway.http.post(path, json=BODY | fields)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def used(reply: dict[str, Any]) -> tuple[int, ...]:
    return tuple(reply["usage"][name] for name in USAGE)


def text_of(*replies: dict[str, Any]) -> str:
    """The text of a whole reply, or of the chunks of a stream."""
    parts = [choice for reply in replies for choice in reply["choices"]]
    said = [part.get("message") or part.get("delta") or {"content": part.get("text")} for part in parts]
    return "".join(each.get("content") or "" for each in said)


@pytest.mark.parametrize(("answer", "filled", "tokens"), [("abcdefgh", "abcde", 5), ("abc", "abc", 3)])
async def test_a_completion_ends_where_its_suffix_begins_or_before(
    gateway: RunningGateway, answer: str, filled: str, tokens: int
) -> None:
    gateway.scheduler.answer = lambda _: answer
    reply = await post(gateway, "/v1/completions", suffix=" end", max_tokens=5, logprobs=0)
    [choice] = reply["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]["tokens"]) == (filled, "stop", [*filled])
    assert used(reply) == (8, tokens, 8 + tokens)  # the suffix is input


@pytest.mark.parametrize(
    ("path", "fields", "prompt"), [("/v1/completions", {}, "2+2="), (CHAT, MESSAGES, "user: How many?\nassistant: ")]
)
async def test_a_template_comes_back_filled_in_and_streams_alike(
    gateway: RunningGateway, path: str, fields: dict[str, Any], prompt: str
) -> None:
    """An end-of-text token within a hole ends neither the text nor the hole."""
    for answer, filled in (("12345", "x=12, y=345."), ("12", "x=12, y=."), ("1", "x=1, y=.")):
        gateway.scheduler.answer = lambda _, answer=answer: answer  # type: ignore[misc]
        reply = await post(gateway, path, **fields, template=TEMPLATE)
        assert (text_of(reply), reply["choices"][0]["finish_reason"]) == (filled, "stop")
        assert used(reply) == (len(prompt) + 7, 5, len(prompt) + 12)
        body = BODY | fields | {"template": TEMPLATE, "stream_options": USAGE_IN_ALL}
        chunks = await gateway.events(path, body)
        assert text_of(*chunks) == filled
        assert used(chunks[-1]) == used(reply)
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
    chunks = await gateway.events("/v1/fim/completions", BODY | fields)
    texts = [(choice["text"], choice["delta"]["content"]) for chunk in chunks for choice in chunk["choices"]]
    assert ["".join(each) for each in zip(*texts, strict=True)] == ["abc", "abc"]


async def test_a_canvas_begins_with_the_given_tokens(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: "12345"
    sent = await gateway.events(CHAT, BODY | MESSAGES | {"template": TEMPLATE, "canvas": True})
    first, *others = [event["cells"] for event in sent if event["object"] == "dilaserve.canvas"]
    pinned = {cell["position"]: cell["text"] for cell in first if cell.get("pinned")}
    assert pinned == dict(zip((0, 1, 4, 5, 6, 7, 11), "x=, y=.", strict=True)) | dict.fromkeys(range(12, 32), "")
    assert not [cell for cells in others for cell in cells if cell.get("pinned")]
    written = {cell["position"]: cell["text"] for cells in (first, *others) for cell in cells}
    assert "".join(written[position] for position in range(32)) == "x=12, y=345."


COMPLETIONS = "/v1/completions"
PLAIN: dict[str, Any] = {"model": "tiny-llada", "prompt": "2+2=", "max_tokens": 32}


async def completed(gateway: RunningGateway, body: dict[str, Any], *, stream: bool) -> list[dict[str, Any]]:
    """The choices, each with its whole text and its end."""
    if not stream:
        reply = await gateway.http.post(COMPLETIONS, json=body)
        assert reply.status_code == 200, reply.text
        return list(reply.json()["choices"])
    parts = [choice for chunk in await gateway.events(COMPLETIONS, body) for choice in chunk["choices"]]
    ends = [part for part in parts if part["finish_reason"]]
    return [
        end | {"text": "".join(part["text"] for part in parts if part["index"] == end["index"])}
        for end in sorted(ends, key=lambda end: end["index"])
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_ends_at_the_stop_of_its_request_and_names_it(
    gateway: RunningGateway, text: TextModel, stream: bool
) -> None:
    nine, eos = int(text.encode_prompt("9")[0]), text.card.eos_token_id
    for fields, *expected in (
        ({}, ANSWER, "stop", None),
        ({"stop_token_ids": [eos, nine]}, "The answer is 2", "stop", nine),
        ({"stop": ["x", "is"]}, "The answer ", "stop", "is"),
        ({"ignore_eos": True}, ANSWER, "length", None),
    ):
        [choice] = await completed(gateway, PLAIN | fields, stream=stream)
        assert [choice["text"], choice["finish_reason"], choice["stop_reason"]] == expected
    whole = (await gateway.http.post(COMPLETIONS, json=PLAIN | {"ignore_eos": True})).json()
    assert whole["usage"]["completion_tokens"] == 32


async def test_usage_counts_the_tokens_up_to_the_stop_text(gateway: RunningGateway) -> None:
    body = PLAIN | {"stop": ["is"], "logprobs": 0}
    whole = (await gateway.http.post(COMPLETIONS, json=body)).json()
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    chunks = await gateway.events(COMPLETIONS, body | options)
    used = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")]
    assert whole["usage"]["completion_tokens"] == used[-1] == max(used) == len("The answer is")
    assert "".join(whole["choices"][0]["logprobs"]["tokens"]) == whole["choices"][0]["text"] == "The answer "


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_prompt_precedes_the_completion(gateway: RunningGateway, text: TextModel, stream: bool) -> None:
    ids = text.encode_prompt("1+1=").tolist()
    for prompt, echoes in (("2+2=", ["2+2="]), (ids, ["1+1="]), (["a", "b"], ["a", "b"])):
        choices = await completed(gateway, PLAIN | {"prompt": prompt, "echo": True, "stop": "2"}, stream=stream)
        assert [choice["text"] for choice in choices] == [f"{echo}The answer is " for echo in echoes]


@pytest.mark.parametrize("stream", [False, True])
async def test_with_echo_and_no_tokens_the_prompt_alone_comes_back(
    gateway: RunningGateway, text: TextModel, stream: bool
) -> None:
    ids = text.encode_prompt("1+1=").tolist()
    for prompt, echoes in (("2+2=", ["2+2="]), (ids, ["1+1="]), (["a", "bc"], ["a", "bc"])):
        body = PLAIN | {"prompt": prompt, "echo": True, "max_tokens": 0}
        choices = await completed(gateway, body, stream=stream)
        assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [
            (echo, "length") for echo in echoes
        ]
        usage = (await gateway.http.post(COMPLETIONS, json=body)).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len("".join(echoes)), 0)
    assert gateway.scheduler.requests == []


async def test_a_stop_token_outside_the_vocabulary_is_refused_with_its_range(
    lonely_gateway: RunningGateway, text: TextModel
) -> None:
    outside = text.card.vocab_size
    error = (await lonely_gateway.http.post(COMPLETIONS, json=PLAIN | {"stop_token_ids": [1, outside]})).json()["error"]
    wrong = f"stop_token_ids must be in 0..{outside - 1}, the model's vocabulary; got {outside}"
    assert (error["message"], error["param"], error["code"]) == (wrong, "stop_token_ids", "invalid_value")
