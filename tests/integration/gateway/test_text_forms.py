"""Texts of a form: JSON schemas, regular expressions and choices become the pattern of the request."""

import asyncio
import time
from typing import Any

import pytest
from pydantic import BaseModel

from services.gateway.api import form_compiler
from shared.messages.requests import OutcomeStatus
from shared.patterns.automaton import compile_pattern
from shared.patterns.compile_budget import Budget
from shared.tasks import cancel
from tests.support.gateway import CHAT, LIMIT_S, ONE_CELL, RunningGateway, leave
from tests.support.scheduler import AnsweringScheduler

pytestmark = ONE_CELL

TEXT: dict[str, Any] = {"model": "tiny-llada", "prompt": "2+2="}
RESPONSE: dict[str, Any] = {"model": "tiny-llada", "input": "2+2="}
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ANSWER = '{"answer": 29}'


class Total(BaseModel):
    answer: int


def pattern_of(scheduler: AnsweringScheduler) -> str:
    return scheduler.requests[-1].pattern


@pytest.mark.parametrize(
    ("form", "example"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}, ANSWER),
        ({"response_format": {"type": "json_object"}}, '{"a": [1, {"b": null}]}'),
        ({"structured_outputs": {"json": SCHEMA}}, ANSWER),
        ({"structured_outputs": {"json": '{"type": "null"}'}}, "null"),
        ({"structured_outputs": {"regex": "[a-c]{2}"}}, "ab"),
        ({"structured_outputs": {"choice": ["yes", "n.o"]}}, "n.o"),
        ({"guided_json": SCHEMA}, ANSWER),
        ({"guided_regex": "[a-c]{2}"}, "ab"),
        ({"guided_choice": ["yes", "no"]}, "yes"),
        ({"guided_grammar": 'root ::= pair | pair "," root\npair ::= [a-c]{2}'}, "ab,ca,bb,cc,aa"),
        ({"structured_outputs": {"grammar": 'root ::= "(" root ")" | [0-9]'}}, "((7))"),
    ],
)
async def test_each_form_becomes_the_pattern_of_the_request(
    gateway: RunningGateway, form: dict[str, Any], example: str
) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        reply = await gateway.http.post(path, json={**body, **form})
        assert reply.status_code == 200, reply.text
        assert compile_pattern(pattern_of(gateway.scheduler)).accepts(example)
        assert not compile_pattern(pattern_of(gateway.scheduler)).accepts("How many?")
        assert "X-Dilaserve-Ignored" not in reply.headers


@pytest.mark.parametrize("form", [{}, {"response_format": {"type": "text"}}, {"guided_json": None}])
async def test_a_text_of_any_form_has_no_pattern(gateway: RunningGateway, form: dict[str, Any]) -> None:
    assert (await gateway.http.post("/v1/chat/completions", json={**CHAT, **form})).status_code == 200
    assert pattern_of(gateway.scheduler) == ""


async def test_a_part_of_a_schema_that_cannot_be_written_is_named_in_the_header(gateway: RunningGateway) -> None:
    schema = {"properties": {"price": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "(?<=a)b"}]}}}
    for _ in range(2):  # also once it is known
        reply = await gateway.http.post("/v1/chat/completions", json={**CHAT, **json_schema(schema)})
        assert reply.status_code == 200, reply.text
        assert reply.headers["X-Dilaserve-Ignored"] == "response_format.json_schema.schema.price.anyOf[1]"
    assert compile_pattern(pattern_of(gateway.scheduler)).accepts('{"price": 1.5}')


async def test_large_bounds_delay_no_other_client(gateway: RunningGateway) -> None:
    large = [{**CHAT, **json_schema({"type": "string", "maxLength": 200_000 + i})} for i in range(6)]
    large += [{**CHAT, "guided_regex": f"[a-z]{{{200_000 + i}}}"} for i in range(6)]
    started_s = time.perf_counter()
    replies = await asyncio.gather(*(gateway.http.post("/v1/chat/completions", json=body) for body in large))
    assert [reply.status_code for reply in replies] == [200] * 6 + [400] * 6
    assert time.perf_counter() - started_s < 4


async def test_the_format_of_a_response_becomes_its_pattern(gateway: RunningGateway) -> None:
    form = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    reply = await gateway.http.post("/v1/responses", json={**RESPONSE, "text": {"format": form}})
    assert reply.status_code == 200, reply.text
    assert compile_pattern(pattern_of(gateway.scheduler)).accepts(ANSWER)
    assert reply.json()["text"] == {"format": form}


async def test_openai_s_client_parses_a_pydantic_model(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: ANSWER
    async with gateway.openai() as api:
        chat = await api.chat.completions.parse(**CHAT, response_format=Total)
        response = await api.responses.parse(**RESPONSE, text_format=Total)
    assert chat.choices[0].message.parsed == Total(answer=29)
    assert response.output_parsed == Total(answer=29)


@pytest.mark.parametrize("form", [{"guided_choice": ["a", "b", "a"]}, {"structured_outputs": {"choice": ["a", "b"]}}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_with_log_probabilities_returns_that_of_each_label(
    gateway: RunningGateway, form: dict[str, Any], stream: bool
) -> None:
    gateway.scheduler.answer = lambda _: "b"
    reply = await gateway.http.post("/v1/chat/completions", json={**CHAT, **form, "logprobs": True, "stream": stream})
    assert reply.status_code == 200, reply.text
    assert (gateway.scheduler.requests[-1].choices, pattern_of(gateway.scheduler)) == (["a", "b"], "")
    assert '"choices":{"a":0.5,"b":0.5}' in reply.text
    assert gateway.scheduler.requests[-1].output_tokens == gateway.scheduler.requests[-1].block_length  # one step


@pytest.mark.parametrize(
    ("form", "blocks"), [("[ab]{3}", 1), ("[ab]{40}", 2), ("a*", 4), ("(?:yes|no|perhaps)", 1), ("[a-z]{2,200}", 4)]
)
async def test_a_form_with_a_longest_text_has_a_shorter_output(gateway: RunningGateway, form: str, blocks: int) -> None:
    body = {**CHAT, "guided_regex": form, "max_tokens": 120}
    reply = await gateway.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert gateway.scheduler.requests[-1].output_tokens == 32 * blocks
    assert "X-Dilaserve-Adjusted" not in reply.headers


def json_schema(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


@pytest.mark.parametrize(
    ("form", "param", "message"),
    [
        (json_schema({"not": {}}), "response_format.json_schema.schema", "has no instance"),
        (
            json_schema({"items": {"multipleOf": 3, "minimum": 1, "maximum": 2}}),
            "response_format.json_schema.schema.items",
            "no multiple of 3 is within the bounds",
        ),
        (json_schema(3), "response_format.json_schema.schema", "must be an object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "json_schema is required"),
        (
            {"response_format": {"type": "regex", "grammar": "a"}},
            "response_format.grammar",
            "not allowed with type regex",
        ),
        ({"response_format": {"type": "json_schema", "regex": "a"}}, "response_format.regex", "not allowed with type"),
        ({"response_format": {"type": "regex"}}, "response_format.regex", "is required with type regex"),
        ({"response_format": {"type": "regex", "value": SCHEMA}}, "response_format.value", "must be a string"),
        ({"response_format": {"type": "text", "regex": "a"}}, "response_format.regex", "another type than text"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
        ({"structured_outputs": {"grammar": "root ::= 'a'"}}, "structured_outputs.grammar", "line 1 of the grammar"),
        ({"guided_grammar": 'root ::= "a" root'}, "guided_grammar", "no text of the grammar fits"),
        ({"guided_json": '{"const": ' + "1" * 5000 + "}"}, "guided_json", "not a JSON schema"),
        ({"guided_regex": ""}, "guided_regex", "only the empty text"),
        ({"guided_regex": "", "tools": [FUNCTION]}, "guided_regex", "only the empty text"),
        ({"guided_json": '{"maxLength": 1e999}'}, "guided_json", "maxLength must be a whole number"),
        ({"guided_regex": "(a|b)*a(a|b){13}"}, "guided_regex", "it may have"),
        ({"guided_regex": "*.txt"}, "guided_regex", r"nothing to repeat before *; accepted is \*"),
        ({"guided_regex": "a" * 100_001}, "guided_regex", "100001 characters"),
        ({"guided_choice": [""]}, "guided_choice[0]", "at least 1 character"),
        ({"guided_choice": ["a" * 90], "logprobs": True, "max_tokens": 40}, "guided_choice", "the text may have 40"),
        (
            {"guided_choice": ["a"], "logprobs": True, "ignore_eos": True},
            "guided_choice",
            "without pattern, pinned tokens and ignore_eos",
        ),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "given: guided_regex, guided_choice"),
    ],
)
async def test_a_form_that_cannot_be_served_is_refused_by_name(
    gateway: RunningGateway, form: dict[str, Any], param: str, message: str
) -> None:
    reply = await gateway.http.post("/v1/chat/completions", json={**CHAT, **form})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["param"], message in error["message"]) == (param, True), error
    assert gateway.scheduler.requests == []


TOOL: dict[str, Any] = {"name": "add", "input_schema": {"type": "object"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT | json_schema(SCHEMA), "response_format.json_schema.schema"),
        ("/v1/completions", TEXT | {"structured_outputs": {"choice": ["yes"]}}, "structured_outputs.choice"),
        ("/v1/completions", TEXT | {"guided_choice": ["yes"], "logprobs": 0}, "guided_choice"),
        ("/v1/responses", RESPONSE | {"text": {"format": {"type": "json_object"}}}, "text.format"),
        ("/v1/messages", CHAT | {"max_tokens": 3, "tools": [TOOL], "tool_choice": {"type": "any"}}, "tools"),
    ],
)
async def test_a_form_that_the_cell_rejects_is_refused_by_name_also_for_a_stream(
    gateway: RunningGateway, path: str, body: dict[str, Any], param: str, stream: bool
) -> None:
    rejected = 'dilaserve_gateway_requests_total{outcome="rejected"}'
    before = await gateway.value(rejected)
    gateway.scheduler.status, gateway.scheduler.error_field = (
        OutcomeStatus.REJECTED,
        "choices" if "logprobs" in body else "pattern",
    )
    reply = await gateway.http.post(path, json=body | {"stream": stream})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert reply.headers["x-request-id"] == gateway.scheduler.requests[0].request_id
    await gateway.metric(f"{rejected} {before + 1}")


async def test_a_stream_of_a_form_has_its_first_step(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: ANSWER
    body = CHAT | {"guided_json": SCHEMA, "stream": True, "canvas": True}
    reply = await gateway.http.post("/v1/chat/completions", json=body)
    assert '"object":"dilaserve.canvas","step":0,' in reply.text
    assert reply.text.endswith("data: [DONE]\n\n")


async def test_a_client_that_leaves_before_the_first_step_of_a_form_cancels_its_request(
    gateway: RunningGateway,
) -> None:
    gateway.scheduler.status, gateway.scheduler.hold = OutcomeStatus.REJECTED, asyncio.Event()
    body = CHAT | {"guided_json": SCHEMA, "stream": True}
    request_id = await leave(gateway, "/v1/chat/completions", json=body)
    async with asyncio.timeout(LIMIT_S):
        assert await gateway.scheduler.cancelled.get() == request_id


async def test_no_form_is_compiled_for_a_client_that_left(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling, ended = asyncio.Event(), asyncio.Event()

    async def compile_for_long(*_: object) -> None:
        compiling.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(form_compiler, "run_in_process", compile_for_long)
    monkeypatch.setattr(form_compiler, "SMALL", Budget(steps=0))
    body = TEXT | {"guided_json": {"type": "string", "pattern": "^[a-z]{5,8}$"}}
    sent = asyncio.create_task(gateway.http.post("/v1/completions", json=body))
    async with asyncio.timeout(LIMIT_S):
        await compiling.wait()
        await cancel([sent])
        await ended.wait()


async def test_other_requests_are_served_while_a_pattern_is_compiled(gateway: RunningGateway) -> None:
    assert (await gateway.http.post("/v1/completions", json={**TEXT, "guided_regex": "a|b"})).status_code == 200
    hostile = TEXT | {"guided_regex": "(?x)(a|b)*a(a|b){30}"}
    waits = asyncio.create_task(gateway.http.post("/v1/completions", json=hostile))
    assert (await gateway.http.post("/v1/completions", json=TEXT)).status_code == 200
    assert not waits.done()
    for other in ({"guided_regex": "a|b"}, {"guided_json": {"type": "string", "pattern": "^[a-z]{5,9}$"}}):
        assert (await gateway.http.post("/v1/completions", json={**TEXT, **other})).status_code == 200
    await cancel([waits])
