"""`dilaserve up` over HTTPS, with servers of others."""

import asyncio
import json
import signal
import ssl
from pathlib import Path

import httpx
import psutil
import pytest

from dilaserve.stack.probes import nats_answers, postgres_answers
from tests.support.certificates import make_certificate
from tests.support.nats import NatsServer
from tests.support.postgres import PostgresServer
from tests.support.stack import dilaserve, new_data_dir, running_stack
from tests.support.waiting import reached

LIMIT_S = 60.0


@pytest.mark.slow
async def test_an_https_stack_serves_until_a_second_interrupt_which_spares_other_servers(
    tiny_checkpoint_dir: Path, tmp_path: Path, nats_server: NatsServer, postgres_server: PostgresServer
) -> None:
    made = make_certificate(tmp_path / "tls")
    trusted = ssl.create_default_context(cafile=made.certificate)
    files = ("--tls-certificate", made.certificate, "--tls-key", made.key)
    servers = ("--nats-url", nats_server.url, "--database-url", postgres_server.url)
    with (
        new_data_dir() as data_dir,
        running_stack(tiny_checkpoint_dir, data_dir, "--instances", "1x1", *files, *servers) as stack,
    ):
        body = {"model": "tiny-llada", "prompt": "how many apples?", "max_tokens": 32, "slo_ms": 60_000}
        url = f"https://localhost:{stack.port}/v1/completions"
        reply = await asyncio.to_thread(httpx.post, url, json=body, verify=trusted, timeout=60)
        assert reply.status_code == 200, reply.text
        status = json.loads(dilaserve("status", "--json", "--data-dir", data_dir).stdout)
        assert (status["ready"], status["url"]) == (True, f"https://127.0.0.1:{stack.port}")
        findings = json.loads(dilaserve("doctor", "--json", "--data-dir", data_dir).stdout)["findings"]
        assert [finding["ok"] for finding in findings if finding["subject"] == "gateway"] == [True]

        children = stack.children()
        assert {child.name() for child in children}.isdisjoint({"nats-server", "postgres"})
        stack.process.send_signal(signal.SIGINT)
        await reached(lambda: b"interrupt again to kill" in stack.log.read_bytes(), LIMIT_S)
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait(timeout=LIMIT_S) == 1
        assert not psutil.wait_procs(children, timeout=LIMIT_S)[1]
    assert await nats_answers(nats_server.url)
    assert await postgres_answers(postgres_server.url)
