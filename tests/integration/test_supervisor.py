"""Processes: the supervisor, also by orders over the bus, a function in a process of its own, a stop in time."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

from dilaserve.stack.node_agent import NodeAgent
from dilaserve.stack.process import Program
from dilaserve.stack.safe_output import BrokenPipeSafeStream
from dilaserve.stack.supervisor import MAX_FAILED_STARTS, Supervisor
from services.reconfigurator.execution.launchers.launcher import Launcher
from services.reconfigurator.execution.launchers.process import ProcessLauncher
from shared.bus.client import Bus
from shared.errors import BadInput, DilaserveError, RetryLater
from shared.messages.launch import InstanceSpec
from shared.run_in_process import run_in_process
from tests.support.services import ROOT
from tests.support.waiting import reached

WAIT_S = 20.0


def shell(name: str, script: str) -> Program:
    return Program(name, ("/bin/sh", "-c", script))


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_dead_program_is_restarted_but_a_stopped_one_is_not(tmp_path: Path) -> None:
    started = tmp_path / "started"
    supervisor = Supervisor()
    supervisor.start(shell("worker-0", f"echo $$ >> {started}; exec sleep 600"))
    await reached(lambda: len(pids(started)) == 1)
    os.kill(pids(started)[0], signal.SIGKILL)
    await reached(lambda: len(pids(started)) == 2)
    await supervisor.stop(["worker"], within_s=WAIT_S)
    assert not alive(pids(started)[1])
    assert len(pids(started)) == 2


async def test_programs_are_stopped_in_the_given_order(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    supervisor = Supervisor()
    for name in ("nats", "worker-0", "worker-1", "gateway"):
        at_end = f"trap 'echo {name.partition('-')[0]} >> {ended}; exit 0' TERM"
        supervisor.start(shell(name, f"{at_end}; touch {tmp_path / name}; while :; do sleep 0.02; done"))
    await reached(lambda: len(list(tmp_path.iterdir())) == 4)
    await supervisor.stop(["gateway", "worker", "nats"], within_s=WAIT_S)
    assert ended.read_text().split() == ["gateway", "worker", "worker", "nats"]


async def test_a_program_that_ignores_its_signal_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    supervisor = Supervisor()
    supervisor.start(shell("worker-0", f"trap '' TERM; echo $$ >> {started}; while :; do sleep 0.02; done"))
    await reached(lambda: bool(pids(started)))
    await supervisor.stop(["worker"], within_s=0.1)
    assert not alive(pids(started)[0])


async def test_a_program_that_rejects_its_settings_is_invalid_input() -> None:
    supervisor = Supervisor()
    supervisor.start(shell("worker-0", "exit 2"))
    with pytest.raises(BadInput, match="worker-0 refuses its settings"):
        await asyncio.wait_for(supervisor.failed, WAIT_S)
    await supervisor.stop(["worker"], within_s=WAIT_S)


@pytest.mark.parametrize("settled", [False, True])
async def test_a_program_that_never_runs_stops_a_stack_that_is_not_ready(
    settled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dilaserve.stack.supervisor.MAX_WAIT_S", 0.1)
    started = tmp_path / "started"
    supervisor = Supervisor()
    supervisor.settled = settled
    supervisor.start(shell("worker-0", f"echo $$ >> {started}; exit 1"))
    await reached(lambda: len(pids(started)) > MAX_FAILED_STARTS)
    await supervisor.stop(["worker"], within_s=WAIT_S)
    assert supervisor.failed.done() is not settled
    if not settled:
        with pytest.raises(DilaserveError, match="worker-0 ended 5 times in a row"):
            supervisor.failed.result()


async def test_output_lines_go_to_standard_error_with_the_program_name(capsys: pytest.CaptureFixture[str]) -> None:
    supervisor = Supervisor()
    supervisor.start(shell("worker-0", "echo one; echo two >&2; printf three; exec sleep 600"))
    text = ""

    def both_there() -> bool:
        nonlocal text
        text += capsys.readouterr().err
        return "two" in text

    await reached(both_there)
    supervisor.kill()
    await supervisor.stop(["worker"], within_s=WAIT_S)
    lines = (text + capsys.readouterr().err).splitlines()
    assert [line for line in lines if "|" in line] == [f"worker-0       | {word}" for word in ("one", "two", "three")]


async def test_a_stack_continues_after_its_output_is_closed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    reading, writing = os.pipe()
    os.close(reading)
    supervisor = Supervisor()
    with os.fdopen(writing, "w") as gone, contextlib.redirect_stderr(BrokenPipeSafeStream(gone)):
        supervisor.start(
            shell("worker-0", f"echo $$ >> {started}; echo a line; head -c 300000 /dev/zero; exec sleep 600")
        )
        await reached(lambda: len(pids(started)) == 1)
        os.kill(pids(started)[0], signal.SIGKILL)
        await reached(lambda: len(pids(started)) == 2)
        await supervisor.stop(["worker"], within_s=WAIT_S)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals children when their parent dies")
async def test_programs_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    started = tmp_path / "started"
    script = f"""
import asyncio
from dilaserve.stack.process import Program
from dilaserve.stack.supervisor import Supervisor

async def main():
    Supervisor().start(Program("worker-0", ("/bin/sh", "-c", "echo $$ >> {started}; exec sleep 600")))
    await asyncio.sleep(600)

asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.DEVNULL)
    await reached(lambda: bool(pids(started)))
    parent.kill()
    await parent.wait()
    await reached(lambda: not alive(pids(started)[0]))


LIMIT_S = 60.0


async def test_the_result_is_returned_and_an_error_is_raised_in_the_parent() -> None:
    assert await run_in_process(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_in_process(divmod, 7, 0)


def touch_at_the_end(path: Path) -> None:
    """Have another program make the file once this process ends in order, as it does to remove its semaphores."""
    Finalize(None, subprocess.run, args=([sys.executable, "-c", f"open({str(path)!r}, 'w')"],), exitpriority=0)


async def test_a_process_ends_in_order_after_its_result(tmp_path: Path) -> None:
    await run_in_process(touch_at_the_end, tmp_path / "ended")
    assert (tmp_path / "ended").exists()


async def test_a_process_that_dies_raises_retry_later() -> None:
    with pytest.raises(RetryLater):
        await run_in_process(os._exit, 3)


async def test_a_cancellation_kills_the_children_of_the_process(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    working = asyncio.create_task(run_in_process(subprocess.run, f"(echo begun; exec sleep 600) > {pipe}", shell=True))  # noqa: S604
    async with asyncio.timeout(LIMIT_S):
        with await asyncio.to_thread(pipe.open) as output:
            assert await asyncio.to_thread(output.readline) == "begun\n"
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert await asyncio.to_thread(output.read) == ""  # it returns once no process can write


STOP = """
from opentelemetry import trace
from shared.telemetry import telemetry
import sys, time
with telemetry("test", sys.argv[1]):
    trace.get_tracer("test").start_span("step").end()
    print(time.time(), flush=True)
"""


@pytest.mark.slow
def test_a_silent_collector_delays_a_stop_by_at_most_two_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = subprocess.run(
            [sys.executable, "-c", STOP, endpoint], cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=20
        ).stdout
        assert 1 < time.time() - float(began) < 3  # the exporter waited, and the process has ended


LARGE, LEFT, RIGHT = (InstanceSpec(node="local", gpus=gpus) for gpus in ((0, 1), (0,), (1,)))


def worker(spec: InstanceSpec) -> Program:
    return Program(spec.name, ("/bin/sleep", "600"))


@pytest.fixture
async def launcher(bus: Bus) -> AsyncIterator[Launcher]:
    supervisor = Supervisor()
    supervisor.start(worker(LARGE))
    await NodeAgent(supervisor, worker, {LARGE.name: LARGE}).serve(bus, "local")
    yield ProcessLauncher(bus, ["local", "away"])
    await supervisor.stop(["worker"], WAIT_S)


async def test_two_small_instances_replace_a_large_one_and_orders_may_be_repeated(launcher: Launcher) -> None:
    assert list(await launcher.nodes()) == ["local"]
    await launcher.start(LARGE)
    assert list(await launcher.running()) == [LARGE]
    with pytest.raises(BadInput, match="worker-local-0_1 runs on its slots"):
        await launcher.start(LEFT)
    for _ in range(2):
        await launcher.stop(LARGE, WAIT_S)
        assert list(await launcher.running()) == []
    await launcher.start(LEFT)
    await launcher.start(RIGHT)
    assert set(await launcher.running()) == {LEFT, RIGHT}


async def test_a_node_without_a_supervisor_is_unavailable(launcher: Launcher, bus: Bus) -> None:
    with pytest.raises(RetryLater, match="cannot reach the supervisor of node gone"):
        await launcher.start(InstanceSpec(node="gone", gpus=(0,)))
    with pytest.raises(RetryLater, match="no supervisor"):
        await ProcessLauncher(bus, ["gone"]).running()
