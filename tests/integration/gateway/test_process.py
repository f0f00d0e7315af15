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
from services.gateway.__main__ import main
sys.exit(main())
"""


async def start(command: list[str], **settings: str) -> asyncio.subprocess.Process:
    variables = {f"DILASERVE_{name.upper()}": value for name, value in settings.items()}
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, env=os.environ | variables, stderr=asyncio.subprocess.PIPE
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Exit status and standard error."""
    async with asyncio.timeout(3 * LIMIT_S):
        _, output = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.parametrize("access_log", [False, True])
async def test_it_serves_without_torch_and_exits_0_on_sigterm(
    bus: Bus, tiny_model_dir: Path, *, access_log: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert bus.nc.connected_url is not None
    process = await start(
        ["-c", WITHOUT_TORCH],
        model=str(tiny_model_dir),
        nats_url=bus.nc.connected_url.geturl(),
        cell=bus.subjects.cell,
        more_models=f"second={tiny_model_dir}@absent",
        port=str(port),
        access_log=str(access_log).lower(),
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
    status, log = await ended(process)
    assert status == 0
    assert log.count('"GET /v1/models/tiny-llada HTTP/1.1" 200') == access_log


async def test_a_taken_port_is_reported_in_one_line(tiny_model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = await start(["-m", "services.gateway"], model=str(tiny_model_dir), port=port)
        assert await ended(process) == (1, f"gateway: cannot listen on 127.0.0.1:{port}: Address already in use\n")


def test_an_invalid_host_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"HOST": "::zz", "PORT": "0", "MODEL": "x"}.items():
        monkeypatch.setenv(f"DILASERVE_{name}", value)
    assert main() == 1
    assert capsys.readouterr().err == "gateway: cannot listen on [::zz]:0: Name or service not known\n"


async def test_an_unusable_model_is_reported_in_one_line(tmp_path: Path) -> None:
    status, output = await ended(await start(["-m", "services.gateway"], model=str(tmp_path), port="0"))
    assert (status, output.count("\n")) == (2, 1), output
    assert output.startswith("gateway: ")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"MODEL": "x", "PORT": "many"}, "PORT"),
        ({"MODEL": "x", "MORE_MODELS": "big=models/big"}, "MORE_MODELS"),
        ({}, "MODEL"),
    ],
)
def test_an_invalid_setting_is_named_in_one_line(
    settings: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"DILASERVE_{name}", value)
    assert main() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gateway: DILASERVE_{named}")
