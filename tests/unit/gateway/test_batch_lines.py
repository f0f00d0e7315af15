"""Reading a batch's input file, writing its output file."""

import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator

import msgspec
import pytest

from services.gateway.batches.batch_lines import MAX_ERRORS, MAX_LINES, MAX_ROW_BYTES, Line, LineResult, read_lines
from shared.messages.gateway import BatchError

ENDPOINT = "/v1/completions"
LINE = b'{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": %s}'
CHUNK = 65_536


async def in_chunks(content: bytes, size: int = CHUNK) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def read(content: bytes, chunk: int = CHUNK) -> tuple[list[Line], list[BatchError]]:
    errors: list[BatchError] = []
    return [line async for line in read_lines(in_chunks(content, chunk), ENDPOINT, errors)], errors


@pytest.mark.parametrize("body", [b"{", b"[" * 300_000 + b"]" * 300_000], ids=["cut", "deep"])
async def test_an_unreadable_line_is_reported_with_its_number(body: bytes) -> None:
    lines, errors = await read(b"\n".join([LINE % (0, b"{}"), LINE % (1, body)]))
    assert [(error.line, error.code) for error in errors] == [(2, "invalid_json_line")]
    assert len(lines) == 1


@pytest.mark.parametrize(
    "content",
    [(LINE % (0, b"{}")).decode().encode("utf-16"), gzip.compress(LINE, mtime=0), b"[%s]" % LINE, b'{"custom_id": 5}'],
)
async def test_the_error_of_a_file_in_another_form_shows_the_accepted_one(content: bytes) -> None:
    _, [error, *_] = await read(content)
    assert "; accepted: one line of JSON in UTF-8, {" in error.message
    assert f'"url": "{ENDPOINT}"' in error.message


async def test_a_file_that_is_not_a_batch_is_not_read_to_its_end() -> None:
    tracemalloc.start()
    try:
        lines, errors = await read(b"x\n" * 1_000_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(lines), len(errors)) == (0, MAX_ERRORS)
    assert peak_bytes < 4_000_000


async def test_half_of_a_surrogate_pair_is_named() -> None:
    _, [error] = await read(LINE % (0, rb'{"prompt": "a \ud83d b"}'))
    assert error.message.startswith(r"\ud83d is half of a surrogate pair, such as a cut emoji; accepted: ")


async def test_too_many_lines_are_reported() -> None:
    _, errors = await read(b"\n".join(LINE % (number, b"{}") for number in range(MAX_LINES + 2)))
    assert [error.code for error in errors] == ["too_many"]


@pytest.mark.parametrize("chunk", [3, 7, CHUNK])
async def test_lines_are_the_same_in_chunks_of_any_size(chunk: int) -> None:
    content = b"\r\n\n".join(LINE % (number, b'{"prompt": "a"}') for number in range(5))
    lines, errors = await read(b"\xef\xbb\xbf" + content, chunk)
    assert ([each.custom_id for each in lines], errors) == (["0", "1", "2", "3", "4"], [])


async def test_a_row_without_an_end_is_not_read_to_its_end() -> None:
    errors: list[BatchError] = []
    num_read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal num_read
        while True:
            num_read += CHUNK
            yield b" " * CHUNK

    assert [line async for line in read_lines(endless(), ENDPOINT, errors)] == []
    assert num_read <= MAX_ROW_BYTES + CHUNK
    assert [(error.line, error.code) for error in errors] == [(1, "body_too_large")]


def test_a_row_of_the_output_is_one_line_for_every_reader() -> None:
    line = Line("a\u2028b", "POST", ENDPOINT, msgspec.Raw(b"{}"))
    texts = ["one\u2028two\x85three\x0b", "\udfff", "é"]
    content = b"".join(LineResult(at, line, "r", {"text": text}).row for at, text in enumerate(texts))
    rows = [json.loads(row) for row in content.decode().splitlines()]
    assert [row["response"]["body"]["text"] for row in rows] == texts
    assert {row["custom_id"] for row in rows} == {line.custom_id}
