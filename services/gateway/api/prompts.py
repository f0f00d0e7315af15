"""The prompts of requests, such as the turns of a conversation with their contents, and their tokens."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.other_fields import kind_of
from services.gateway.errors import MAX_NAME_LENGTH
from shared.arrays import Int32
from shared.text import TextModel
from shared.tokenizer import LONG_TEXT, ROLES

TextKind = Literal["text", "input_text", "output_text"]  # all but the first are those of responses
# Also read as a text: a refusal of an earlier reply, and the tool that a search for tools has found
TEXT_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    "refusal": "refusal",
    "tool_reference": "tool_name",
}


class TextPart(Lenient):
    type: TextKind
    text: str
    annotations: list[Any] | None = None  # this and the next of an earlier reply: accepted, not used
    logprobs: list[Any] | None = None


def without_documents(content: Any) -> Any:
    """A content in which each document whose source is a text is a part of text, below its title, and so is each
    summary of earlier messages."""
    if not isinstance(content, list):
        return content
    parts = list(content)
    for i, part in enumerate(content):
        if kind_of(part) == "compaction" and isinstance(part.get("content"), str):
            parts[i] = {"type": "text", "text": part["content"]}
        source = part.get("source") if kind_of(part) == "document" else None
        if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
            title = part.get("title")
            parts[i] = {"type": "text", "text": f"{title}\n{source['data']}" if title else source["data"]}
    return parts


def as_texts(content: Any) -> Any:
    """Check the parts of a list, and make a part of text of each."""
    if not isinstance(content, list):
        return content
    texts = without_documents(content)
    for i, part in enumerate(list(texts)):
        kind = kind_of(part)
        field = TEXT_FIELDS.get(kind)
        if field is None or not isinstance(part.get(field), str):
            given = f", not of the type {kind[:MAX_NAME_LENGTH]!r}" if kind and field is None else ""
            form = f"{{'type': {kind if field else 'text'!r}, {field or 'text'!r}: '...'}}"
            raise unsupported(f"part {i} must be of the form {form}{given}; only text is supported")
        if field != "text":
            texts[i] = {"type": "text", "text": part[field]}
    return texts


def joined(content: str | Sequence[TextPart] | None) -> str:
    """The text of a content; empty if there is none."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


TextOrParts = Annotated[str | Annotated[list[TextPart], Field(fail_fast=True)], BeforeValidator(as_texts)]


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
