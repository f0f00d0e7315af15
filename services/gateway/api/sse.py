"""Server-sent events."""

from collections.abc import AsyncIterator, Mapping

from fastapi.responses import StreamingResponse


class EventStreamResponse(StreamingResponse):
    """Sends each text of `data` as one event."""

    def __init__(self, data: AsyncIterator[str], headers: Mapping[str, str] | None = None) -> None:
        events = (f"data: {text}\n\n" async for text in data)
        headers = {"Cache-Control": "no-cache", **(headers or {})}
        super().__init__(events, headers=headers, media_type="text/event-stream")
