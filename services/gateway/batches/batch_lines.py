"""The lines of a batch, as OpenAI shapes them: read from its input file, written to output and error files. Pure."""

import io
import json
from typing import Any

import msgspec

from services.gateway.api.errors import ApiError
from services.gateway.api.replies import Json
from services.gateway.api.request_models import ChatBody, CompletionBody, TextBody
from shared.messages.gateway import BatchError

MAX_LINES = 50_000
MAX_ERRORS = 20  # of a wrong input file, told
BODIES: dict[str, type[CompletionBody]] = {"/v1/chat/completions": ChatBody, "/v1/completions": TextBody}


class Line(msgspec.Struct, frozen=True):
    """One request of a batch. Its body is read when its turn comes: a wrong one ends that request, not the batch."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


def read_lines(content: bytes, endpoint: str) -> tuple[list[Line], list[BatchError]]:
    """Returns: the lines, and what is wrong with the file, as far as it is read: with anything wrong none is to be run,
    and a file may be nothing but millions of wrong lines."""
    lines: list[Line] = []
    errors: list[BatchError] = []
    seen: set[str] = set()
    for number, row in enumerate(io.BytesIO(content), 1):
        if len(errors) >= MAX_ERRORS or len(lines) > MAX_LINES:
            break
        if not row.strip():
            continue
        try:
            line = msgspec.json.decode(row, type=Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            errors.append(BatchError(message=str(error), line=number, code="invalid_json_line"))
            continue
        if line.method != "POST" or line.url != endpoint:
            message = f"method and url must be POST {endpoint}"
            errors.append(BatchError(message=message, line=number, code="invalid_url"))
        if line.custom_id in seen:
            message = f"custom_id {line.custom_id[:100]!r} is there twice"
            errors.append(BatchError(message=message, line=number, code="duplicate_custom_id"))
        seen.add(line.custom_id)
        lines.append(line)
    if not lines and not errors:
        errors.append(BatchError(message="the file has no line", code="empty_file"))
    if len(lines) > MAX_LINES:
        errors.append(BatchError(message=f"the file has more than {MAX_LINES} requests", code="too_many"))
    return lines, errors[:MAX_ERRORS]


def written(batch_id: str, number: int, line: Line, request_id: str, reply: Json | ApiError) -> Json:
    """The line of the output file, or of the error file."""
    status, body = (reply.status, reply.body()) if isinstance(reply, ApiError) else (200, reply)
    response: dict[str, Any] = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": f"{batch_id}-{number}", "custom_id": line.custom_id, "response": response, "error": None}


def as_file(lines: list[Json]) -> bytes:
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
