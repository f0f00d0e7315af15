"""The gateway as a process: start, stop and refusal to start."""

import asyncio
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest

from dilaserve.stack.ports import free_ports
from services.gateway.__main__ import main
from shared.bus.client import Bus
from tests.support.gateway import LIMIT_S

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
