"""The prompts of requests, such as the turns of a conversation, and their tokens."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic_core import from_json

from shared.arrays import Int32
from shared.text import TextModel
from shared.tokenizer import LONG_TEXT, ROLES

T = TypeVar("T")
Turn = Mapping[str, Any]  # of a conversation, as chat templates take it


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, as the chat template takes it."""

    turns: Sequence[Turn]
    tools: Sequence[Turn] = ()
    opens_reply: bool = True  # whether the beginning of the model's reply follows
    options: Mapping[str, Any] = field(default_factory=dict)  # further variables of the chat template

    @property
    def length(self) -> int:
        """About its number of characters."""
        return sum(len(str(each)) for each in (*self.turns, *self.tools))


Prompt = str | Sequence[int] | Chat  # a text, tokens, or a conversation


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


async def encode_prompt(prompt: Prompt, text: TextModel, name: str) -> Int32:
    """The tokens of a prompt. Raises: BadInput for the field `name`."""
    if isinstance(prompt, Chat):
        encode = partial(text.encode_turns, prompt.turns, name, prompt.tools)
        encode = partial(encode, opens_reply=prompt.opens_reply, options=prompt.options)
        return await unblocked(encode, prompt.length)
    if isinstance(prompt, str):
        return await unblocked(partial(text.encode_prompt, prompt, name), len(prompt))
    return await unblocked(partial(text.check_ids, prompt, name), len(prompt))


async def unblocked(work: Callable[[], T], length: int) -> T:
    """The result of `work`; of texts with many characters or tokens, in a thread."""
    return await asyncio.to_thread(work) if length > LONG_TEXT else work()
