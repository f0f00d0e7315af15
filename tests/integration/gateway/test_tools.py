"""Tools in chats: their place in the prompt, the pattern of the reply, and the calls that clients receive."""

from typing import Any

import pytest

from shared.arrays import unpack_int32
from shared.patterns.automaton import compile_pattern
from shared.text import TextModel
from tests.support.gateway import ONE_CELL, RunningGateway
from tests.support.scheduler import AnsweringScheduler

pytestmark = ONE_CELL

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "tiny-llada", "messages": [{"role": "user", "content": "1+2?"}], "max_tokens": 96}
NUMBER = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **fields}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    built_in = {"type": "web_search"}  # of which another server has many
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*map(named, names), built_in]}}


ADD, SUB = tool("add"), tool("sub", description="Subtracts.")
ARGUMENTS = {"add": '{"a": 1}', "sub": '{"a": 2}'}
CALL, OTHER = (f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in ARGUMENTS.items())


def prompt_of(scheduler: AnsweringScheduler, text: TextModel) -> str:
    return text.decode(unpack_int32(scheduler.requests[-1].prompt_ids or b""))


REPLIES: list[tuple[dict[str, Any], str, str | None, list[str], str]] = [
    ({}, CALL, None, ["add"], "tool_calls"),
    ({}, f"{CALL}\n{OTHER}", None, ["add", "sub"], "tool_calls"),
    ({}, "It is 3.", "It is 3.", [], "stop"),
    ({"tool_choice": "required"}, CALL, None, ["add"], "tool_calls"),
    ({"tool_choice": named("add")}, CALL, None, ["add"], "stop"),
    ({"tool_choice": "add"}, CALL, None, ["add"], "stop"),
    ({"parallel_tool_calls": False}, f"{CALL}\n{OTHER}", None, ["add"], "tool_calls"),
    ({"tool_choice": "none"}, CALL, CALL, [], "stop"),
    ({"tool_choice": allowed("auto", "sub")}, OTHER, None, ["sub"], "tool_calls"),
]


async def test_a_reply_has_the_calls_whole_and_streamed(gateway: RunningGateway) -> None:
    short = [{"type": "function", "function": {"name": name}} for name in ("add", "sub")]  # leaves room for the output
    async with gateway.openai() as api:
        for fields, answer, *expected in REPLIES:
            gateway.scheduler.answer = lambda _, answer=answer: answer  # type: ignore[misc]
            body: Any = {**CHAT, "tools": short, **fields}
            [whole] = (await api.chat.completions.create(**body)).choices
            async with api.chat.completions.stream(**body) as stream:
                [streamed] = (await stream.get_final_completion()).choices
            ids = [call.id for call in whole.message.tool_calls or []]
            assert len(set(ids)) == len(ids)
            for choice in (whole, streamed):
                calls = [call.function for call in choice.message.tool_calls or []]
                assert [call.arguments for call in calls] == [ARGUMENTS[call.name] for call in calls]
                found = [choice.message.content or None, [call.name for call in calls], choice.finish_reason]
                assert found == expected, fields


async def test_arguments_are_cut_with_the_text(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: CALL
    reply = (await gateway.http.post(PATH, json={**CHAT, "tools": [ADD], "max_tokens": 34})).json()["choices"][0]
    assert (reply["message"]["tool_calls"][0]["function"]["arguments"], reply["finish_reason"]) == ('{"a":', "length")


REQUIRED = {"tool_choice": "required"}
PATTERNS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"tool_choice": "required"}, [CALL, f"{CALL}\n{OTHER}"], ["Hello", CALL.replace("1", '"x"'), ""]),
    ({"tool_choice": "required", "parallel_tool_calls": False}, [CALL, OTHER], [f"{CALL}\n{OTHER}"]),
    ({"tool_choice": named("sub")}, [OTHER], [CALL, f"{OTHER}\n{OTHER}", "Hello"]),
    ({"tool_choice": allowed("required", "sub")}, [OTHER, f"{OTHER}\n{OTHER}"], [CALL, "Hello"]),
    ({"tools": [tool("add", strict=True)]}, [CALL, "Hello {"], [OTHER, CALL.replace("1", '"x"')]),
    ({"tools": [tool("add") | {"strict": True}]}, [CALL, "Hello {"], [OTHER, CALL.replace("1", '"x"')]),
    (
        {"tools": [tool("add", parameters={"type": "object", "properties": {}})], "tool_choice": "required"},
        [CALL.replace('{"a": 1}', "{}")],
        [CALL],
    ),
    *(
        (
            {"tools": [tool("add", parameters={"type": kind, "properties": {"a": {}}, "required": ["a"]})], **REQUIRED},
            [CALL],
            [CALL.replace('{"a": 1}', "null")],
        )
        for kind in (None, ["object", "null"])  # as typed languages write it
    ),
    ({"guided_choice": ["yes", "no"]}, ["yes", CALL], ["Hello"]),
    ({"guided_choice": ["yes", "no"], "tool_choice": "required"}, [CALL], ["yes"]),
    ({"guided_choice": ["yes", "no"], "tool_choice": "none"}, ["yes"], [CALL]),
]


async def test_calls_that_must_match_their_schema_become_the_pattern(gateway: RunningGateway) -> None:
    for fields, accepted, refused in PATTERNS:
        reply = await gateway.http.post(PATH, json={**CHAT, "tools": [ADD, SUB], **fields})
        assert reply.status_code == 200, reply.text
        pattern = gateway.scheduler.requests[-1].pattern
        assert [text for text in (*accepted, *refused) if compile_pattern(pattern).accepts(text)] == accepted, fields


async def test_calls_that_need_not_match_their_schema_leave_the_text_free(gateway: RunningGateway) -> None:
    unsupported = tool("add", parameters={"type": "object", "not": {}})
    for choice in ("auto", "none", None):
        reply = await gateway.http.post(PATH, json={**CHAT, "tools": [unsupported], "tool_choice": choice})
        assert reply.status_code == 200, reply.text
        assert gateway.scheduler.requests[-1].pattern == ""


async def test_the_prompt_has_the_tools_the_calls_and_their_results(gateway: RunningGateway, text: TextModel) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    turns = [
        *CHAT["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3"}]},
    ]
    body = {**CHAT, "messages": turns, "tools": [ADD]}
    reply = await gateway.http.post(PATH, json=body)
    assert reply.status_code == 200, reply.text
    prompt = prompt_of(gateway.scheduler, text)
    assert '{"name": "add", "parameters": {"type": "object"' in prompt
    assert prompt.endswith(f"user: 1+2?\nassistant: {CALL}\nuser: Result of add: 3\nassistant: ")
    counted = await gateway.http.post("/tokenize", json={name: body[name] for name in ("model", "messages", "tools")})
    assert counted.json()["count"] == reply.json()["usage"]["prompt_tokens"]
    await gateway.http.post(PATH, json={**body, "tool_choice": "none"})
    assert "parameters" not in prompt_of(gateway.scheduler, text)
    await gateway.http.post(PATH, json={**CHAT, "tools": [ADD, SUB], "tool_choice": allowed("auto", "sub")})
    assert [name in prompt_of(gateway.scheduler, text) for name in ('"add"', '"sub"')] == [False, True]


SAME_CALLS: list[tuple[dict[str, Any], dict[str, Any]]] = [  # with their results; each has no text
    ({"content": ""}, {"content": ""}),
    ({}, {}),
    ({"content": None, "refusal": None, "function_call": None}, {"content": None, "name": "add"}),
    ({"content": [], "refusal": ""}, {"content": []}),
    ({"arguments": ""}, {"content": [{"type": "text", "text": ""}]}),
    ({"arguments": "null"}, {}),
    ({"arguments": None}, {}),
    ({"arguments": {}}, {}),
    ({"id": None}, {"tool_call_id": None}),
]


async def test_clients_may_leave_out_or_null_the_empty_parts_of_a_conversation(
    gateway: RunningGateway, text: TextModel
) -> None:
    for fields, result in SAME_CALLS:
        function = {"name": "add", **({"arguments": fields["arguments"]} if "arguments" in fields else {})}
        called = {"role": "assistant", "tool_calls": [{"id": fields.get("id", "c1"), "function": function}]}
        turns = [
            *CHAT["messages"],
            called | {name: fields[name] for name in fields.keys() - {"id", "arguments"}},
            {"role": "tool", "tool_call_id": "c1", **result},
            {"role": "assistant"},
            *CHAT["messages"],
        ]
        reply = await gateway.http.post(PATH, json={**CHAT, "messages": turns})
        assert reply.status_code == 200, reply.text
        named = "the function" if "id" in fields else "add"
        called_and_told = f'assistant: {{"name": "add", "arguments": {{}}}}\nuser: Result of {named}: \n'
        assert f"{called_and_told}assistant: \nuser: 1+2?" in prompt_of(gateway.scheduler, text), fields


REFUSED: list[tuple[dict[str, Any], str, str]] = [
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}], "tool_choice": "required"}, "tool_choice",
         "needs functions in tools"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "must match ^[A-Za-z0-9_.-]"),
        ({"tools": [ADD, ADD]}, "tools", "two functions with the name 'add'"),
        ({"tools": [ADD] * 129}, "tools", "at most 128"),
        *(({"tools": [ADD], "tool_choice": choice}, "tool_choice", "names 'mul', no function of tools; they are add")
          for choice in (named("mul"), "mul")),
        ({"tools": [ADD], "tool_choice": allowed("auto", "add", "mul")}, "tool_choice", "names 'mul', no function"),
        ({"tools": [ADD], "tool_choice": allowed("required")}, "tool_choice", "must allow a function"),
        ({"tools": [ADD], "tool_choice": allowed("some", "add")}, "tool_choice.mode", "must be 'auto' or 'required'"),
        ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice.name", "is required"),
        ({"tools": [ADD], "tool_choice": 1}, "tool_choice", "must be 'none', 'auto', 'required', {"),
        ({"tool_choice": "required"}, "tool_choice", "needs functions in tools"),
        ({"tools": [tool("a", parameters={"type": "string"})], "tool_choice": "required"},
         "tools[0].function.parameters", "must be of the type object"),
        ({"tools": [ADD, tool("a", strict=True, parameters={"type": "object", "not": {}})]},
         "tools[1].function.parameters", "tools[1].function.parameters has no instance"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{"id": "c", "function": {"name": "f",
         "arguments": ""}}]}]}, "messages[0].tool_calls", "only allowed in a message of the assistant"),
]  # fmt: skip


async def test_tools_that_cannot_be_served_are_refused_by_name(gateway: RunningGateway) -> None:
    for fields, param, message in REFUSED:
        reply = await gateway.http.post(PATH, json={**CHAT, **fields})
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert (error["param"], message in error["message"]) == (param, True), error
    assert gateway.scheduler.requests == []


@pytest.mark.parametrize("given", [{"prompt": "a"}, {"messages": CHAT["messages"]}])
async def test_the_tokenizer_refuses_tools_as_a_chat_does(gateway: RunningGateway, given: dict[str, Any]) -> None:
    wrong = {"model": CHAT["model"], "tools": [ADD, ADD]}
    replies = [
        await gateway.http.post("/tokenize", json=wrong | given),
        await gateway.http.post(PATH, json=CHAT | wrong),
    ]
    assert [reply.status_code for reply in replies] == [400, 400]
    assert replies[0].json() == replies[1].json()
