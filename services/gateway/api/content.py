"""The content of a message: a text, or a list of parts of text."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.other_fields import kind_of
from services.gateway.errors import MAX_NAME_LENGTH

TextKind = Literal["text", "input_text", "output_text"]  # all but the first are those of responses


class TextPart(Lenient):
    type: TextKind
    text: str
    annotations: list[Any] | None = None  # this and the next of an earlier reply: accepted, not used
    logprobs: list[Any] | None = None


def check_parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    for i, part in enumerate(content):
        kind = kind_of(part)
        is_text = kind in get_args(TextKind)
        if not is_text or not isinstance(part.get("text"), str):
            given = f", not of the type {kind[:MAX_NAME_LENGTH]!r}" if kind and not is_text else ""
            form = "{'type': 'text', 'text': '...'}"
            raise unsupported(f"part {i} must be of the form {form}{given}; only text is supported")
    return content


def joined(content: str | Sequence[TextPart] | None) -> str:
    """The text of a content; empty if there is none."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


TextOrParts = Annotated[str | Annotated[list[TextPart], Field(fail_fast=True)], BeforeValidator(check_parts)]
