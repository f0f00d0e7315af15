"""The bodies of agents and of other servers' clients are served; what has no effect is named in the header."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shared.arrays import unpack_int32
from shared.text import TextModel
from tests.support.gateway import MODEL, ONE_CELL, RunningGateway

pytestmark = ONE_CELL

QUESTION = {"role": "user", "content": "How many pears?"}
SCHEMA = {"type": "object", "properties": {"pears": {"type": "integer"}}, "required": ["pears"]}
FUNCTION = {"type": "function", "name": "add", "parameters": SCHEMA}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [QUESTION]},
    "/v1/completions": {"prompt": "How many pears?"},
    "/v1/responses": {"input": "How many pears?"},
    "/v1/messages": {"messages": [QUESTION], "max_tokens": 32},
    "/v1/messages/count_tokens": {"messages": [QUESTION]},
}
RECORDED = Path(__file__).parents[2] / "clients/bodies"


async def ignored_of(gateway: RunningGateway, path: str, **fields: Any) -> str:
    """The header of a reply, which must be no error."""
    reply = await gateway.http.post(path, json={"model": MODEL} | BODIES[path] | fields)
    assert reply.status_code == 200, reply.text
    return str(reply.headers.get("x-dilaserve-ignored", ""))


def shortened(fields: dict[str, Any]) -> dict[str, Any]:
    """The same object without descriptions and properties, and with short texts."""
    texts = {name: fields[name] for name in ("text", "content", "output") if isinstance(fields.get(name), str)}
    schemas = {name: {"type": "object"} for name in fields.keys() & {"input_schema", "parameters"}}
    kept = {name: value for name, value in fields.items() if name != "description"}
    return kept | schemas | {name: value[:3] for name, value in texts.items()}


def thinks(**fields: Any) -> dict[str, Any]:
    blocks = [{"type": "thinking", "signature": "x", **fields}, {"type": "text", "text": "29"}]
    return {"messages": [QUESTION, {"role": "assistant", "content": blocks}, QUESTION]}


@pytest.mark.parametrize(
    ("path", "fields", "ignored"),
    [
        ("messages", {"thinking": {"type": "adaptive"}}, "thinking"),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ("messages", {"thinking": {"type": "disabled"}}, ""),
        ("messages/count_tokens", {"thinking": {"type": "adaptive"}}, "thinking"),
        ("messages", thinks(thinking="Pears?"), "messages[1].content[0].type=thinking"),
        ("messages", thinks(type="redacted_thinking", data="x"), "messages[1].content[0].type=redacted_thinking"),
        *(
            ("messages", thinks(type=kind, id="x"), f"messages[1].content[0].type={kind}")
            for kind in ("server_tool_use", "web_search_tool_result", "mcp_tool_use", "bash_code_execution_tool_result")
        ),
        ("messages/count_tokens", thinks(thinking="Pears?"), "messages[1].content[0].type=thinking"),
        ("messages", thinks(type="container_upload", file_id="x"), "messages[1].content[0].type=container_upload"),
        ("messages", thinks(type="compaction", content="It is about pears."), ""),
        ("messages", {"output_config": {"effort": "high", "task_budget": {"type": "tokens", "total": 9}}},
         "output_config.effort, output_config.task_budget"),
        ("messages", {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ("messages", {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, ""),
        ("messages", {"betas": ["x"], "container": "x", "speed": "fast"}, "betas, container, speed"),
        ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
         "tools[0].type=web_search_20250305"),
        ("messages", {"stop_sequences": [str(i) for i in range(16)]}, ""),
        ("responses", {"tools": [{"type": "custom", "name": "apply_patch"}, FUNCTION]}, "tools[0].type=custom"),
        ("responses", {"tools": [{"type": "web_search"}, {"type": "namespace", "name": "x", "tools": []}]},
         "tools[0].type=web_search, tools[1].type=namespace"),
        ("responses", {"tools": [{"type": "mcp", "server_label": "x"}, {"type": "local_shell"}]},
         "tools[0].type=mcp, tools[1].type=local_shell"),
        ("responses", {"input": [QUESTION, {"type": "reasoning", "summary": []}]}, "input[1].type=reasoning"),
        ("responses", {"input": [QUESTION, {"type": "web_search_call", "id": "x", "status": "completed"}]},
         "input[1].type=web_search_call"),
        ("responses", {"reasoning": {"effort": "low", "summary": "auto"}}, "reasoning.effort, reasoning.summary"),
        ("responses", {"text": {"verbosity": "low"}, "truncation": "auto"}, "truncation, text.verbosity"),
        ("responses", {"truncation": "disabled", "text": {"verbosity": "medium"}, "store": True}, ""),
        ("responses", {"include": ["reasoning.encrypted_content", "web_search_call.action.sources"]}, ""),
        ("responses", {"stream_options": {"include_obfuscation": True}, "prompt_cache_key": "x"},
         "stream_options, prompt_cache_key"),
        ("chat/completions", {"stop": [str(i) for i in range(16)]}, ""),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, ""),
        ("chat/completions", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type=custom"),
        ("chat/completions", {"tools": [{"type": "function", "function": {"name": "x"}}], "tool_choice": "any"}, ""),
        ("chat/completions", {"chat_template_kwargs": {"enable_thinking": False}},
         "chat_template_kwargs.enable_thinking"),
        ("chat/completions", {"tools": [{"function": {"name": "x"}}], "tool_choice": {"function": {"name": "x"}}}, ""),
        ("chat/completions", {"verbosity": "low", "service_tier": "flex"}, "service_tier, verbosity"),
        ("messages", {"service_tier": "priority"}, "service_tier"),
        ("chat/completions", {"remasking": "low_confidence", "cfg_scale": 0.0, "block_length": 32}, ""),
        ("chat/completions", {"random_seed": 7, "temperature": 0.5}, ""),
        ("chat/completions", {"stream": True, "stream_options": {"include_obfuscation": True}},
         "stream_options.include_obfuscation"),
        ("chat/completions", {"stream": True, "stream_options": {"include_usage": None}, "extra_body": {}}, ""),
        ("chat/completions", {"messages": [QUESTION, {"role": "assistant", "tool_calls": [
            {"id": None, "type": None, "function": {"name": "add", "arguments": None}}]}, QUESTION]}, ""),
        ("chat/completions", {"mirostat": 0, "tfs_z": 1.0, "top_n_sigma": -1, "dynamic_temperature": False}, ""),
    ],
)  # fmt: skip
async def test_a_body_is_served_and_what_has_no_effect_is_named(
    gateway: RunningGateway, path: str, fields: dict[str, Any], ignored: str
) -> None:
    found = await ignored_of(gateway, f"/v1/{path}", **fields)
    assert sorted(found.split(", ")) == sorted(ignored.split(", "))


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_without_a_model_is_for_the_only_one(gateway: RunningGateway, path: str) -> None:
    without: list[dict[str, Any]] = [{}, {"model": None}, {"model": ""}]
    for model in without:
        reply = await gateway.http.post(path, json=BODIES[path] | model)
        assert reply.status_code == 200, reply.text
        assert reply.json().get("model", MODEL) == MODEL


@pytest.mark.parametrize("agent", ["claude_code", "codex"])
async def test_the_recorded_bodies_of_agents_are_served(gateway: RunningGateway, agent: str) -> None:
    recorded = json.loads((RECORDED / f"{agent}.json").read_text(), object_hook=shortened)
    for turn in recorded["turns"]:
        reply = await gateway.http.post(recorded["path"], json=turn | {"model": MODEL}, headers=recorded["headers"])
        assert reply.status_code == 200, reply.text
        assert {"message_stop", "response.completed"} & set(re.findall('"type":"([a-z_.]+)"', reply.text))


async def test_a_system_message_stays_at_its_place(gateway: RunningGateway, text: TextModel) -> None:
    turns = [QUESTION, {"role": "system", "content": "Be short."}, {"role": "assistant", "content": "29"}, QUESTION]
    for path in ("/v1/messages", "/v1/chat/completions"):
        await ignored_of(gateway, path, messages=turns)
    of_messages, of_chat = gateway.scheduler.requests
    assert of_messages.prompt_ids == of_chat.prompt_ids
    at_the_end = [QUESTION, {"role": "system", "content": "Be short."}]
    await ignored_of(gateway, "/v1/messages", messages=at_the_end)
    prompt = text.decode(unpack_int32(gateway.scheduler.requests[-1].prompt_ids or b""))
    assert prompt.index("How many pears?") < prompt.index("Be short.")


JSON_FORM = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
REGEX, GRAMMAR = {"guided_regex": "[0-9]+"}, {"guided_grammar": "root ::= [0-9]+"}


@pytest.mark.parametrize(
    ("usual", "path", "fields"),
    [
        (JSON_FORM, "chat/completions", {"response_format": {"type": "json_object", "schema": SCHEMA}}),
        (JSON_FORM, "chat/completions", {"response_format": {"type": "json_object", "value": SCHEMA}}),
        (JSON_FORM, "chat/completions", {"response_format": {"type": "json_schema", "schema": SCHEMA}}),
        (JSON_FORM, "chat/completions", {"response_format": {"type": "json", "value": SCHEMA}}),
        (JSON_FORM, "chat/completions",
         {"response_format": {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}}),
        (JSON_FORM, "chat/completions",
         {"response_format": {"type": "json_schema", "schema": SCHEMA, "strict": "true"}}),
        (JSON_FORM, "chat/completions", {"guided_json": json.dumps({"name": "x", "strict": True, "schema": SCHEMA})}),
        (JSON_FORM, "chat/completions", {"json_schema": json.dumps(SCHEMA)}),
        (JSON_FORM, "completions", {"json_schema": SCHEMA}),
        (JSON_FORM, "messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        (JSON_FORM, "messages", {"output_format": {"type": "json_schema", "schema": SCHEMA}}),
        # As guidance 0.3 sends it, which does not know vLLM's version
        (JSON_FORM, "chat/completions", {"guided_json": SCHEMA, "structured_outputs": {"json": json.dumps(SCHEMA)}}),
        (REGEX, "chat/completions", {"guided_regex": "[0-9]+", "structured_outputs": {"regex": "[0-9]+"}}),
        (REGEX, "chat/completions", {"regex": "[0-9]+"}),
        *((REGEX, "chat/completions", {"response_format": {"type": kind, name: "[0-9]+"}})
          for kind, name in (("regex", "value"), ("regex", "pattern"), ("regex", "regex"),
                             ("regex_schema", "regex_schema"))),
        *((GRAMMAR, "chat/completions", {name: "root ::= [0-9]+"}) for name in ("grammar", "ebnf")),
        *((GRAMMAR, "chat/completions", {"response_format": {"type": name, name: "root ::= [0-9]+"}})
          for name in ("grammar", "ebnf")),
    ],
)  # fmt: skip
async def test_a_form_at_any_place_and_under_the_names_of_other_servers_applies(
    gateway: RunningGateway, usual: dict[str, Any], path: str, fields: dict[str, Any]
) -> None:
    gateway.scheduler.answer = lambda _: '{"pears": 29}' if usual is JSON_FORM else "29"
    assert await ignored_of(gateway, "/v1/chat/completions", **usual) == ""
    assert await ignored_of(gateway, f"/v1/{path}", **fields) == ""
    first, second = gateway.scheduler.requests
    assert first.pattern
    assert second.pattern == first.pattern


async def test_a_lark_grammar_is_refused_with_the_form_that_is_accepted(gateway: RunningGateway) -> None:
    for name in ("guided_grammar", "ebnf", "grammar"):
        body = {"model": MODEL, "messages": [QUESTION], name: 'start: "yes" | "no"'}
        error = (await gateway.http.post("/v1/chat/completions", json=body)).json()["error"]
        assert error["param"] == name
        assert 'GBNF, such as: root ::= "yes" | "no"' in error["message"]


async def test_fields_of_diffusion_models_own_code_are_those_of_a_completion(gateway: RunningGateway) -> None:
    own = {"threshold": 0.9, "gen_length": 8, "random_seed": 7}
    for fields in (own, {"min_threshold": 0.9, "max_tokens": 8, "seed": 7}):
        assert await ignored_of(gateway, "/v1/completions", **fields) == ""
    first, second = gateway.scheduler.requests
    assert (first.min_threshold, first.max_tokens, first.seed) == (0.9, 8, 7)
    assert (second.min_threshold, second.max_tokens, second.seed) == (0.9, 8, 7)


async def test_a_call_and_a_result_of_a_custom_tool_are_turns_of_the_chat(
    gateway: RunningGateway, text: TextModel
) -> None:
    called = {"type": "custom_tool_call", "call_id": "a", "name": "sum", "input": "14+15"}
    result = {"type": "custom_tool_call_output", "call_id": "a", "output": "29"}
    await ignored_of(gateway, "/v1/responses", input=[QUESTION, called, result])
    call = {"id": "a", "type": "custom", "custom": {"name": "sum", "input": "14+15"}}
    turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "29"}]
    await ignored_of(gateway, "/v1/chat/completions", messages=[QUESTION, *turns])
    first, second = gateway.scheduler.requests
    prompt = text.decode(unpack_int32(first.prompt_ids or b""))
    assert "14+15" in prompt
    assert "Result of sum: 29" in prompt
    assert second.prompt_ids == first.prompt_ids


async def test_a_refusal_of_an_earlier_reply_is_its_text(gateway: RunningGateway) -> None:
    part = {"type": "refusal", "refusal": "I cannot."}
    spoken: list[dict[str, Any]] = [{"content": "I cannot."}, {"content": [part]}, {"refusal": "I cannot."}]
    for own in spoken:
        turns = [QUESTION, {"role": "assistant", **own}, QUESTION]
        assert await ignored_of(gateway, "/v1/chat/completions", messages=turns) == ""
    await ignored_of(gateway, "/v1/responses", input=[QUESTION, {"role": "assistant", "content": [part]}, QUESTION])
    assert len(gateway.scheduler.requests) == 4
    assert len({request.prompt_ids for request in gateway.scheduler.requests}) == 1


async def test_a_model_is_listed_as_mistrals_clients_read_it(gateway: RunningGateway) -> None:
    [model] = (await gateway.http.get("/v1/models")).json()["data"]
    assert (model["type"], model["capabilities"]["completion_chat"]) == ("base", True)
