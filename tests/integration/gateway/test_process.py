"""The gateway as a process: start, stop and refusal to start, also with TLS."""

import asyncio
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from dilaserve.load.client import open_client, run_load
from dilaserve.load.workload import LoadRequest, RequestLoad
from dilaserve.stack.ports import free_ports
from services.gateway import http_protocol
from services.gateway.__main__ import main, prepare
from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.errors import BadInput
from shared.service import run_service
from shared.text import TextModel
from tests.support.certificates import Certificate, make_certificate
from tests.support.gateway import LIMIT_S, ready, running
from tests.support.scheduler import AnsweringScheduler

WITHOUT_TORCH = """
import resource
import sys
from importlib.machinery import PathFinder

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "torch" else super().find_spec(name, path, target)

sys.meta_path = [WithoutTorch if finder is PathFinder else finder for finder in sys.meta_path]
from dilaserve.stack.ports import free_ports
from services.gateway.__main__ import main
sys.exit(main())
"""


async def test_it_serves_without_torch_and_exits_0_on_sigterm(bus: Bus, tiny_model_dir: Path) -> None:
    port = free_ports(1)[0]
    assert bus.nc.connected_url is not None
    settings = {"MODEL": tiny_model_dir, "MORE_MODELS": f"second={tiny_model_dir}@absent", "PORT": port}
    settings |= {"NATS_URL": bus.nc.connected_url.geturl(), "CELL": bus.subjects.cell, "ACCESS_LOG": True}
    variables = {f"DILASERVE_{name}": str(value).lower() for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT_TORCH, env=os.environ | variables, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async with asyncio.timeout(3 * LIMIT_S):
        while b"listening" not in (output := await process.stderr.readline()):
            assert output, "the process ended"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as http:
        model, second = (await http.get("/v1/models")).json()["data"]
        assert (model["id"], second["id"]) == ("tiny-llada", "second")
        assert (await http.get("/v1/models/tiny-llada")).json() == model
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard, "it raises the limit on connections"
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(3 * LIMIT_S):
        _, log = await process.communicate()
    assert process.returncode == 0
    assert log.count(b'"GET /v1/models/tiny-llada HTTP/1.1" 200') == 1


def test_an_address_that_cannot_be_served_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DILASERVE_MODEL", "x")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = str(taken.getsockname()[1])
        for host, port, error in (
            ("127.0.0.1", used, f"127.0.0.1:{used}: Address already in use"),
            ("::zz", "0", "[::zz]:0: Name or service not known"),
        ):
            monkeypatch.setenv("DILASERVE_HOST", host)
            monkeypatch.setenv("DILASERVE_PORT", port)
            assert main() == 1
            assert capsys.readouterr().err == f"gateway: cannot listen on {error}\n"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"MODEL": "x", "PORT": "many"}, "DILASERVE_PORT"),
        ({"MODEL": "x", "MORE_MODELS": "big=models/big"}, "DILASERVE_MORE_MODELS"),
        ({}, "DILASERVE_MODEL"),
        ({"MODEL": "models/demo", "AUTH": "true"}, "DILASERVE_DATABASE_URL"),
    ],
)
def test_an_invalid_setting_is_named_in_one_line(
    settings: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"DILASERVE_{name}", value)
    assert main() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gateway: {named}")


BODY = {"model": "tiny-llada", "prompt": "hi", "max_tokens": 32}


@pytest.fixture
def tls_settings(settings: GatewaySettings, certificate: Certificate) -> GatewaySettings:
    files = {"tls_certificate": str(certificate.certificate), "tls_key": str(certificate.key)}
    return msgspec.structs.replace(settings, **files)


async def test_requests_are_served_over_tls_only(
    tls_settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler
) -> None:
    async with ready(tls_settings, text) as gateway:
        whole = (await gateway.http.post("/v1/completions", json=BODY)).json()
        assert whole["choices"][0]["text"] == "The answer is 29."
        streamed = await gateway.http.post("/v1/completions", json=BODY | {"stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
        async with httpx.AsyncClient(base_url=gateway.url) as untrusting:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await untrusting.get("/health")
            with pytest.raises(httpx.RemoteProtocolError):
                await untrusting.get(gateway.url.replace("https", "http") + "/health")
    assert len(scheduler.requests) == 2


async def test_the_load_client_trusts_the_certificates_of_a_given_file(
    tls_settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, certificate: Certificate
) -> None:
    load = RequestLoad([LoadRequest(prompt="How many pears?", output_tokens=32)], [0.0], 1.0)
    async with ready(tls_settings, text) as gateway:
        with pytest.raises(BadInput, match="CERTIFICATE_VERIFY_FAILED"):
            await run_load(gateway.url, load, 5.0, lambda _: None)
        [reply] = await run_load(gateway.url, load, 5.0, lambda _: None, ca=certificate.certificate)
        assert reply.error is None
        with pytest.raises(BadInput, match=f"--ca {certificate.key}: no readable certificates"):
            open_client(gateway.url, httpx.Timeout(1.0), "", certificate.key)


@pytest.mark.parametrize(("sent", "status"), [(b"", b"408"), (b"X: " + b"x" * 100_000, b"431")])
async def test_an_endless_or_slow_header_is_refused_over_tls(
    sent: bytes,
    status: bytes,
    tls_settings: GatewaySettings,
    text: TextModel,
    bus: Bus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.1)
    trusted = ssl.create_default_context(cafile=tls_settings.tls_certificate)
    async with running(tls_settings, text) as gateway:
        reader, writer = await asyncio.open_connection("localhost", httpx.URL(gateway.url).port, ssl=trusted)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + sent)
        async with asyncio.timeout(LIMIT_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
        writer.close()


@pytest.fixture(scope="module")
def files(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | str]:
    directory = tmp_path_factory.mktemp("files")
    encrypted = directory / "encrypted.pem"
    command = f"openssl ec -in {certificate.key} -aes256 -passout pass:secret -out {encrypted}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return {
        "none": "",
        "missing": directory / "missing.pem",
        "certificate": certificate.certificate,
        "key": certificate.key,
        "encrypted key": encrypted,
        "other key": make_certificate(directory / "other").key,
    }


@pytest.mark.parametrize(
    ("certificate_file", "key_file", "message"),
    [
        ("certificate", "none", "must be set together"),
        ("none", "key", "must be set together"),
        ("missing", "key", "No such file or directory"),
        ("key", "key", "accepted: a PEM certificate and its key"),
        ("certificate", "certificate", "accepted: a PEM certificate and its key"),
        ("certificate", "other key", "KEY_VALUES_MISMATCH"),
        ("certificate", "encrypted key", "accepted: a PEM certificate and its key without a password"),
    ],
)
def test_unusable_files_are_reported_in_one_line(
    certificate_file: str, key_file: str, message: str, files: dict[str, Path | str], capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {"MODEL": "x", "PORT": "0", "TLS_CERTIFICATE": files[certificate_file], "TLS_KEY": files[key_file]}
    variables = {f"DILASERVE_{name}": str(value) for name, value in environ.items()}
    assert run_service("gateway", GatewaySettings, prepare, asyncio.run, variables) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert message in line
