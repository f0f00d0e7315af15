"""The content of a message: a text, or a list of parts of text."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from services.gateway.api.base_models import Lenient, unsupported

MAX_KIND_LENGTH = 50  # characters of a part's type that a message repeats


class ContentPart(Lenient):
    text: str


class TextPart(ContentPart):
    type: Literal["text"]


def check_parts(content: Any, kinds: Sequence[str] = ("text",)) -> Any:
    """Check that a list has only text parts, whose type is one of `kinds`."""
    if not isinstance(content, list):
        return content
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds or not isinstance(part.get("text"), str):
            form = f"{{'type': '{kinds[0]}', 'text': '...'}}"
            given = (
                f", not of the type {kind[:MAX_KIND_LENGTH]!r}" if isinstance(kind, str) and kind not in kinds else ""
            )
            raise unsupported(f"part {i} must be of the form {form}{given}; only text is supported")
    return content


def joined(content: str | Sequence[ContentPart] | None) -> str:
    """The text of a content; empty if there is none."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


TextOrParts = Annotated[str | list[TextPart], BeforeValidator(check_parts)]
