"""`dilaserve up` with every service, a real bus and a real database."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from dilaserve.stack.probes import nats_answers, postgres_answers
from tests.support.nats import NatsServer
from tests.support.postgres import PostgresServer
from tests.support.stack import Stack, dilaserve, new_data_dir, running_stack

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def stack(tiny_checkpoint_dir: Path) -> Iterator[Stack]:
    with new_data_dir() as data_dir, running_stack(tiny_checkpoint_dir, data_dir) as running:
        yield running


def reached(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "not reached in time"
        time.sleep(0.05)


def test_a_request_is_served_by_one_of_the_two_instances(stack: Stack) -> None:
    reply = stack.complete("how many apples?")
    assert reply.status_code == 200, reply.text
    served = reply.json()["dilaserve"]
    assert served["steps"] >= 1
    reached(lambda: len(stack.instances()) == 2)
    status = json.loads(dilaserve("status", "--json", "--data-dir", stack.data_dir).stdout)
    assert {instance["instance_id"] for instance in status["instances"]} == stack.instances()
    assert set(served["instances"]) <= stack.instances()


@pytest.mark.parametrize("server", ["nats-server", "postgres"])
def test_serving_continues_after_a_killed_server(stack: Stack, server: str) -> None:
    killed = stack.program(server)
    killed.kill()
    reached(lambda: any(program.pid != killed.pid for program in stack.programs(server)))
    reached(lambda: stack.complete("how many plums?").status_code == 200)
    reached(lambda: len(stack.instances()) == 2)


@pytest.mark.slow
def test_a_taken_port_and_a_used_directory_are_one_line_errors(
    stack: Stack, tiny_checkpoint_dir: Path, tmp_path: Path
) -> None:
    model = ("--model", tiny_checkpoint_dir)
    taken = dilaserve("up", *model, "--data-dir", tmp_path / "data", "--port", stack.port)
    assert (taken.returncode, taken.stdout) == (2, "")
    assert taken.stderr.endswith("the port is taken; choose another with --port\n")
    assert taken.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["lock"]

    used = dilaserve("up", *model, "--data-dir", stack.data_dir, "--port", stack.port)
    assert (used.returncode, used.stdout, used.stderr.count("\n")) == (2, "", 1)
    assert f"in use by another `dilaserve up` (process {stack.process.pid})" in used.stderr


@pytest.mark.slow
async def test_a_second_interrupt_leaves_only_the_external_servers(
    tiny_checkpoint_dir: Path, nats_server: NatsServer, postgres_server: PostgresServer
) -> None:
    servers = ("--nats-url", nats_server.url, "--database-url", postgres_server.url)
    with (
        new_data_dir() as data_dir,
        running_stack(tiny_checkpoint_dir, data_dir, "--instances", "1x1", *servers) as stack,
    ):
        assert stack.complete("how many figs?").status_code == 200
        children = stack.children()
        assert {child.name() for child in children}.isdisjoint({"nats-server", "postgres"})
        stack.process.send_signal(signal.SIGINT)
        reached(lambda: b"interrupt again to kill" in stack.log.read_bytes())
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait(timeout=LIMIT_S) == 1
        assert not psutil.wait_procs(children, timeout=LIMIT_S)[1]
    assert await nats_answers(nats_server.url)
    assert await postgres_answers(postgres_server.url)


@pytest.mark.slow
def test_it_drains_leaves_no_process_and_a_copy_of_its_data_works(stack: Stack, tiny_checkpoint_dir: Path) -> None:
    """The last test of the module, because it stops the stack."""
    request_id = stack.complete("how many plums?").json()["dilaserve"]["request_id"]
    assert dilaserve("keys", "create", "alice", "--data-dir", stack.data_dir).returncode == 0
    children = stack.children()
    assert stack.stop() == 0
    assert not psutil.wait_procs(children, timeout=LIMIT_S)[1]
    copy = stack.data_dir.with_name("a copy + é%41")
    subprocess.run(["cp", "--archive", stack.data_dir, copy], check=True)
    with running_stack(tiny_checkpoint_dir, copy, "--instances", "1x1", "--slo", "9") as second:
        assert json.loads(dilaserve("cell-config", "--json", "--data-dir", copy).stdout)["default_slo_s"] == 9
        assert httpx.get(f"{second.url}/v1/requests/{request_id}").status_code == 200
        keys = json.loads(dilaserve("keys", "list", "--json", "--data-dir", copy).stdout)["keys"]
        assert [key["name"] for key in keys] == ["alice"]
        assert second.stop() == 0
