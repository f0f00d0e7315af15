"""The chat format of the block-causal demo model: turns, tools, tool calls and their results."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment

TOOLS, TOOL, CALL, CALL_END = "<|tools|>", "<|tool|>", "<tool_call>", "</tool_call>"

TEMPLATE = (
    "{% if tools %}{{ '<|tools|>' }}"
    "{% for tool in tools %}{{ (tool.function if tool.function is defined else tool) | tojson }}{% endfor %}"
    "{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% set called = call.function if call.function is defined else call %}"
    "{% set arguments = called.arguments if called.arguments is string else called.arguments | tojson %}"
    "{{ '<tool_call>{\"name\": ' + called.name | tojson + ', \"arguments\": ' + arguments + '}</tool_call>' }}"
    "{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ '<|endoftext|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

Message = Mapping[str, Any]


def _environment() -> Environment:
    """As transformers renders chat templates. A prompt is not a page: nothing in it is escaped."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True)  # noqa: S701
    environment.filters["tojson"] = to_json
    return environment


def to_json(value: object) -> str:
    """JSON in one line, with a space after each comma and colon."""
    return json.dumps(value, ensure_ascii=False)


_COMPILED = _environment().from_string(TEMPLATE)


def prompt_of(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """The text of a conversation, up to the start of the assistant's next turn."""
    return _COMPILED.render(messages=messages, tools=tools, add_generation_prompt=True)


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    """A tool call as the model writes it."""
    return f"{CALL}{to_json({'name': name, 'arguments': arguments})}{CALL_END}"


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}
