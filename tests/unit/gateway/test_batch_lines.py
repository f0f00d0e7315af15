"""What is read of a batch's input file."""

import pytest

from services.gateway.batch_lines import read_lines

ENDPOINT = "/v1/completions"


@pytest.mark.parametrize("body", [b"{", b"[" * 10_000 + b"]" * 10_000], ids=["cut", "deep"])
def test_a_line_that_cannot_be_read_is_named(body: bytes) -> None:
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": %s}'
    lines, errors = read_lines(b"\n".join([line % b"{}", line % body]), ENDPOINT)
    assert [(error.line, error.code) for error in errors] == [(2, "invalid_json_line")]
    assert len(lines) == 1
