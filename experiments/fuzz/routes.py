"""A damaged request for every POST route of the REST API. Pure, given the random generator."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from experiments.fuzz.mutations import damaged_bytes, mutated, mutated_body
from experiments.live_cluster import chat_body

BOUNDARY = "fuzz"
LINE = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "demo", "prompt": "2+2?"}}\n'
UPLOAD: dict[str, Any] = {"purpose": "batch", "filename": "in.jsonl", "content": LINE}
SERVING: dict[str, Any] = {
    "temperature": 0.5,
    "seed": 3,
    "slo_ms": 5000.0,
    "priority": 0,
    "min_threshold": 0.5,
    "block_length": 8,
}
TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "4"}]},
]
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": chat_body(
        "2+2?",
        **SERVING,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
        stop=["\n"],
        user="u",
        canvas=True,
        n=1,
        response_format={"type": "text"},
        tools=[],
    ),
    "/v1/completions": {"model": "demo", "prompt": "2+2?", "max_tokens": 8, "stop": "\n", "echo": False},
    "/v1/fim/completions": {"model": "demo", "prompt": "2+", "suffix": "=4", "max_tokens": 8, "random_seed": 3},
    "/v1/responses": {
        "model": "demo",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "2+2?"}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 2}'},
            {"type": "function_call_output", "call_id": "c1", "output": "4"},
        ],
        "instructions": "Add.",
        "max_output_tokens": 16,
        "metadata": {"a": "b"},
        "reasoning": {"effort": None},
        "text": {"format": {"type": "text"}},
        "tools": [{"type": "function", "name": "add", "parameters": TOOL["input_schema"], "strict": False}],
        "tool_choice": "none",
        "previous_response_id": None,
        "store": False,
        "stream": True,
        **SERVING,
    },
    "/v1/decisions": {
        "model": "demo",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "2+2?"}]}],
        "questions": [
            {"type": "predicate", "name": "a", "instructions": "It is 4."},
            {
                "type": "choice",
                "instructions": "Which?",
                "choices": [{"value": "4", "description": "b"}, {"value": True}],
            },
            {"type": "score", "instructions": "How large?", "levels": [{"label": "small"}, {"label": "large"}]},
        ],
        "slo_ms": 5000.0,
    },
    "/v1/messages": {
        "model": "demo",
        "messages": TURNS,
        "system": [{"type": "text", "text": "Add."}],
        "max_tokens": 16,
        "stop_sequences": ["\n"],
        "metadata": {"user_id": "u"},
        "tools": [TOOL],
        "tool_choice": {"type": "none"},
        "stream": True,
        **SERVING,
    },
    "/v1/messages/count_tokens": {"model": "demo", "messages": TURNS, "system": "Add.", "tools": [TOOL]},
    "/tokenize": {"model": "demo", "messages": [{"role": "user", "content": "2+2?"}], "tools": []},
    "/detokenize": {"model": "demo", "tokens": [5, 6, 7]},
    "/v1/batches": {
        "input_file_id": "file-1",
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        "metadata": {"a": "b"},
    },
}


@dataclass(frozen=True, slots=True)
class Post:
    path: str
    content: bytes = b""
    content_type: str = "application/json"


def post_body(path: str, rng: random.Random) -> Post:
    """The JSON body of a route, damaged."""
    return Post(path, mutated_body(dict(BODIES[path]), rng))


def post_form(path: str, rng: random.Random) -> Post:
    """A form with a file, whose fields, lines or bytes are damaged."""
    fields = {name: str(value) for name, value in mutated(UPLOAD, rng).items()}
    disposition = 'Content-Disposition: form-data; name="{}"'
    parts = []
    if "purpose" in fields:
        parts.append(f"{disposition.format('purpose')}\r\n\r\n{fields['purpose']}")
    if "content" in fields:
        name = disposition.format("file") + f'; filename="{fields.get("filename", "")}"'
        parts.append(f"{name}\r\nContent-Type: application/jsonl\r\n\r\n{fields['content']}")
    form = "".join(f"--{BOUNDARY}\r\n{part}\r\n" for part in parts) + f"--{BOUNDARY}--\r\n"
    boundary = BOUNDARY if rng.random() > 0.1 else rng.choice(("", "other", "x" * 100))
    return Post(path, damaged_bytes(form.encode(), rng), f"multipart/form-data; boundary={boundary}")


def post_id(path: str, rng: random.Random) -> Post:
    """No body; a damaged id in the path, which the format `path` has as {}."""
    name = str(mutated({"id": "chatcmpl-r-1"}, rng).get("id", "")).encode()
    return Post(path.format(quote(damaged_bytes(name, rng) if name else name, safe="")))


ROUTES: Mapping[str, Callable[[random.Random], Post]] = {
    **{path: partial(post_body, path) for path in BODIES},
    "/v1/files": partial(post_form, "/v1/files"),
    "/v1/requests/{name}/cancel": partial(post_id, "/v1/requests/{}/cancel"),
    "/v1/batches/{batch_id}/cancel": partial(post_id, "/v1/batches/{}/cancel"),
}
