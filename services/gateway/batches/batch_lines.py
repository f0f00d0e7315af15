"""The lines of a batch in OpenAI's format: read from the input file, written to output and error files. Pure."""

import codecs
import json
from collections.abc import AsyncIterator

import msgspec

from services.gateway.api.replies_and_chunks import Json
from services.gateway.api.request_body import MAX_BODY_BYTES
from services.gateway.api.request_models import ChatBody, CompletionBody, TextBody
from services.gateway.errors import ApiError
from shared.bus.codec import half_pair
from shared.messages.gateway import BatchError

MAX_LINES = 50_000
MAX_ROW_BYTES = 2 * MAX_BODY_BYTES  # a smaller body than this that is too large fails its line alone
MAX_ERRORS = 20  # reported errors of an input file
BODIES: dict[str, type[CompletionBody]] = {"/v1/chat/completions": ChatBody, "/v1/completions": TextBody}


class Line(msgspec.Struct, frozen=True):
    """One request of a batch. Its body is parsed when it is served, so an invalid body fails only its line."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class LineResult:
    """The row of line `number`, counted from 0, in the output or the error file."""

    def __init__(self, number: int, line: Line, request_id: str, reply: Json | ApiError) -> None:
        self.number, self.failed = number, isinstance(reply, ApiError)
        status, body = (reply.status, reply.body()) if isinstance(reply, ApiError) else (200, reply)
        response = {"status_code": status, "request_id": request_id, "body": body}
        row = {"id": request_id, "custom_id": line.custom_id, "response": response, "error": None}
        self.row = json.dumps(row).encode() + b"\n"


async def read_lines(chunks: AsyncIterator[bytes], endpoint: str, errors: list[BatchError]) -> AsyncIterator[Line]:
    """The lines of a file, of which one row and one chunk are in memory at a time.

    Appends the file's errors to `errors`, and ends at MAX_ERRORS, as a file may have millions of invalid lines; a file
    with errors is not served.
    """
    number, custom_ids = 0, set[str]()
    async for row in _rows(chunks):
        number += 1
        if len(row) > MAX_ROW_BYTES or row.strip():
            line, wrong = _read(row, endpoint, custom_ids)
            errors += [BatchError(message=message, line=number, code=code) for code, message in wrong.items()]
            if len(errors) >= MAX_ERRORS or len(row) > MAX_ROW_BYTES:
                del errors[MAX_ERRORS:]
                return
            if len(custom_ids) > MAX_LINES:
                errors.append(BatchError(message=f"the file has more than {MAX_LINES} requests", code="too_many"))
                return
            if line is not None:
                yield line
    if not custom_ids and not errors:
        errors.append(BatchError(message="the file has no lines", code="empty_file"))


def _read(row: bytes, endpoint: str, custom_ids: set[str]) -> tuple[Line | None, dict[str, str]]:
    """The line, and its errors by code. Adds its custom_id to those of the lines before."""
    if len(row) > MAX_ROW_BYTES:
        return None, {"body_too_large": f"the line is larger than {MAX_ROW_BYTES} bytes"}
    try:
        line = msgspec.json.decode(row, type=Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        form = f'{{"custom_id": "…", "method": "POST", "url": "{endpoint}", "body": {{…}}}}'
        return None, {"invalid_json_line": f"{half_pair(row) or error}; accepted: one line of JSON in UTF-8, {form}"}
    wrong = {}
    if line.method != "POST" or line.url != endpoint:
        wrong["invalid_url"] = f"method and url must be POST {endpoint}"
    if line.custom_id in custom_ids:
        wrong["duplicate_custom_id"] = f"duplicate custom_id {line.custom_id[:100]!r}"
    custom_ids.add(line.custom_id)
    return line, wrong


async def _rows(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The rows of a file, without a byte order mark. The last one may be a part of a row that is too large."""
    *rows, rest = (await anext(chunks, b"")).removeprefix(codecs.BOM_UTF8).split(b"\n")
    while True:
        for row in rows:
            yield row
        chunk = b"" if len(rest) > MAX_ROW_BYTES else await anext(chunks, b"")
        if not chunk:
            yield rest
            return
        *rows, rest = (rest + chunk).split(b"\n")
