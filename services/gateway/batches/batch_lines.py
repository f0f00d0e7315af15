"""The lines of a batch in OpenAI's format: read from the input file, written to output and error files. Pure."""

import codecs
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from services.gateway.api.replies import Json
from services.gateway.api.request_models import ChatBody, CompletionBody, TextBody
from services.gateway.errors import ApiError
from shared.bus.codec import half_pair
from shared.messages.gateway import BatchError

MAX_LINES = 50_000
MAX_ERRORS = 20  # reported errors of an input file
BODIES: dict[str, type[CompletionBody]] = {"/v1/chat/completions": ChatBody, "/v1/completions": TextBody}


class Line(msgspec.Struct, frozen=True):
    """One request of a batch. Its body is parsed when it is served, so an invalid body fails only its line."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


@dataclass(frozen=True, slots=True)
class LineResult:
    """The reply to line `number`, counted from 0."""

    number: int
    line: Line
    request_id: str
    reply: Json | ApiError

    @property
    def failed(self) -> bool:
        return isinstance(self.reply, ApiError)

    def to_json(self) -> Json:
        """The row of the output or error file."""
        reply = self.reply
        status, body = (reply.status, reply.body()) if isinstance(reply, ApiError) else (200, reply)
        response = {"status_code": status, "request_id": self.request_id, "body": body}
        return {"id": self.request_id, "custom_id": self.line.custom_id, "response": response, "error": None}


def read_lines(content: bytes, endpoint: str) -> tuple[list[Line], list[BatchError]]:
    """Returns: the lines and the file's errors. Stops at MAX_ERRORS, as a file may have millions of invalid lines; a
    file with errors is not served."""
    lines: list[Line] = []
    errors: list[BatchError] = []
    custom_ids: set[str] = set()

    def fail(message: str, *, code: str, line: int | None = None) -> None:
        errors.append(BatchError(message=message, line=line, code=code))

    for number, row in enumerate(io.BytesIO(content.removeprefix(codecs.BOM_UTF8)), 1):
        if len(errors) >= MAX_ERRORS or len(lines) > MAX_LINES:
            break
        if not row.strip():
            continue
        try:
            line = msgspec.json.decode(row, type=Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            fail(half_pair(row) or str(error), line=number, code="invalid_json_line")
            continue
        if line.method != "POST" or line.url != endpoint:
            fail(f"method and url must be POST {endpoint}", line=number, code="invalid_url")
        if line.custom_id in custom_ids:
            fail(f"duplicate custom_id {line.custom_id[:100]!r}", line=number, code="duplicate_custom_id")
        custom_ids.add(line.custom_id)
        lines.append(line)
    if not lines and not errors:
        fail("the file has no lines", code="empty_file")
    if len(lines) > MAX_LINES:
        fail(f"the file has more than {MAX_LINES} requests", code="too_many")
    return lines, errors[:MAX_ERRORS]


def write_results(results: Iterable[LineResult]) -> bytes:
    """The content of an output or error file."""
    rows = (json.dumps(result.to_json()) for result in results)
    return b"".join(row.encode() + b"\n" for row in rows)
