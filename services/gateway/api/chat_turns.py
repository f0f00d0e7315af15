"""The turns of a conversation, as chat templates take them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from shared.tokenizer import ROLES

Turn = Mapping[str, Any]


def turn(role: str, content: str, calls: Sequence[Turn] = (), result_of: str | None = None) -> dict[str, Any]:
    """The turn of a message. `calls`: of tools; `result_of`: the id of the call with this result."""
    made: dict[str, Any] = {"role": ROLES.get(role, role), "content": content}
    if calls:
        made["tool_calls"] = list(calls)
    if result_of is not None:
        made["tool_call_id"] = result_of
    return made


def call(call_id: str | None, name: str, arguments: Any) -> Turn:
    """A call of a turn. `arguments`: a value, which chat templates write as JSON, or JSON; a text that is no JSON stays
    as it is, and an empty one is an empty object."""
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = from_json(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments or {}}}
