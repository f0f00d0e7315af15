"""`dilaserve up` over HTTPS."""

import json
import ssl
from pathlib import Path

import httpx
import pytest

from tests.support.certificates import make_certificate
from tests.support.stack import dilaserve, new_data_dir, running_stack


@pytest.mark.slow
def test_a_stack_with_a_certificate_is_ready_and_serves_over_https(tiny_checkpoint_dir: Path, tmp_path: Path) -> None:
    made = make_certificate(tmp_path / "tls")
    trusted = ssl.create_default_context(cafile=made.certificate)
    files = ("--tls-certificate", made.certificate, "--tls-key", made.key)
    with (
        new_data_dir() as data_dir,
        running_stack(tiny_checkpoint_dir, data_dir, "--instances", "1x1", *files) as stack,
    ):
        body = {"model": "tiny-llada", "prompt": "how many apples?", "max_tokens": 32, "slo_ms": 60_000}
        url = f"https://localhost:{stack.port}/v1/completions"
        reply = httpx.post(url, json=body, verify=trusted, timeout=60)
        assert reply.status_code == 200, reply.text
        status = json.loads(dilaserve("status", "--json", "--data-dir", data_dir).stdout)
        assert (status["ready"], status["url"]) == (True, f"https://127.0.0.1:{stack.port}")
        findings = json.loads(dilaserve("doctor", "--json", "--data-dir", data_dir).stdout)["findings"]
        assert [finding["ok"] for finding in findings if finding["subject"] == "gateway"] == [True]
