"""Server-sent events."""

from collections.abc import AsyncIterator, Mapping

from fastapi.responses import StreamingResponse

DONE = "[DONE]"  # data of the last event of OpenAI's completions


def as_event(data: str, name: str | None = None) -> str:
    """One event with `data`, a single line; `name` is its type."""
    return f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n"


class EventStreamResponse(StreamingResponse):
    """Sends each event."""

    def __init__(self, events: AsyncIterator[str], headers: Mapping[str, str] | None = None) -> None:
        headers = {"Cache-Control": "no-cache", **(headers or {})}
        super().__init__(events, headers=headers, media_type="text/event-stream")
