"""Reading a batch's input file, writing its output file."""

import json
import tracemalloc

import msgspec
import pytest

from services.gateway.batches.batch_lines import MAX_ERRORS, MAX_LINES, Line, LineResult, read_lines, write_results

ENDPOINT = "/v1/completions"


@pytest.mark.parametrize("body", [b"{", b"[" * 10_000 + b"]" * 10_000], ids=["cut", "deep"])
def test_an_unreadable_line_is_reported_with_its_number(body: bytes) -> None:
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": %s}'
    lines, errors = read_lines(b"\n".join([line % b"{}", line % body]), ENDPOINT)
    assert [(error.line, error.code) for error in errors] == [(2, "invalid_json_line")]
    assert len(lines) == 1


def test_a_file_that_is_not_a_batch_is_not_read_to_its_end() -> None:
    tracemalloc.start()
    try:
        lines, errors = read_lines(b"x\n" * 1_000_000, ENDPOINT)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(lines), len(errors)) == (0, MAX_ERRORS)
    assert peak_bytes < 4_000_000


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_file_may_have_a_byte_order_mark_and_other_line_ends(end: bytes) -> None:
    line = b'{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}}'
    lines, errors = read_lines(b"\xef\xbb\xbf" + end.join([line % b"a", line % b"b", b""]), ENDPOINT)
    assert ([each.custom_id for each in lines], errors) == (["a", "b"], [])


def test_half_of_a_surrogate_pair_is_named() -> None:
    line = rb'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a \ud83d b"}}'
    _, [error] = read_lines(line, ENDPOINT)
    assert error.message == r"\ud83d is half of a surrogate pair, such as a cut emoji"


def test_too_many_lines_are_reported() -> None:
    line = b'{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": {}}'
    _, errors = read_lines(b"\n".join(line % number for number in range(MAX_LINES + 2)), ENDPOINT)
    assert [error.code for error in errors] == ["too_many"]


def test_a_row_of_the_output_is_one_line_for_every_reader() -> None:
    line = Line("a\u2028b", "POST", ENDPOINT, msgspec.Raw(b"{}"))
    texts = ["one\u2028two\x85three\x0b", "\udfff", "é"]
    content = write_results(LineResult(at, line, "r", {"text": text}) for at, text in enumerate(texts))
    rows = [json.loads(row) for row in content.decode().splitlines()]
    assert [row["response"]["body"]["text"] for row in rows] == texts
    assert {row["custom_id"] for row in rows} == {line.custom_id}
