"""The content of a message: a text, or a list of parts of text."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.other_fields import kind_of
from services.gateway.errors import MAX_NAME_LENGTH

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


def as_texts(content: Any) -> Any:
    """Check the parts of a list, and make a part of text of each."""
    if not isinstance(content, list):
        return content
    texts = list(content)
    for i, part in enumerate(content):
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
