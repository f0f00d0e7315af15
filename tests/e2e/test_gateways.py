"""`dilaserve up --gateways 2`: one of them is drained and replaced under load, then the other."""

import itertools
import signal
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.stack import new_data_dir, running_stack

LIMIT_S = 120.0
CLIENTS = 4
GATEWAY = "services.gateway"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_request_fails_while_gateways_are_replaced(tiny_checkpoint_dir: Path) -> None:
    options = ("--instances", "1x1", "--gateways", "2", "--slo", "60")
    with new_data_dir() as data_dir, running_stack(tiny_checkpoint_dir, data_dir, *options) as stack:
        statuses, errors, stopped = list[int](), list[str](), threading.Event()

        def client(*, keeps_connection: bool) -> None:
            body = {"model": "tiny-llada", "prompt": "how many figs?", "max_tokens": 32}
            headers = {} if keeps_connection else {"Connection": "close"}
            with httpx.Client(base_url=stack.url, timeout=LIMIT_S, headers=headers, trust_env=False) as http:
                while not stopped.is_set():
                    try:
                        statuses.append(http.post("/v1/completions", json=body).status_code)
                    except httpx.TransportError as error:
                        errors.append(repr(error))

        def further(replies: int) -> None:
            wanted = len(statuses) + replies
            deadline_s = time.monotonic() + LIMIT_S
            while len(statuses) < wanted:
                assert time.monotonic() < deadline_s, "the load stands still"
                time.sleep(0.05)

        clients = [
            threading.Thread(target=client, kwargs={"keeps_connection": keeps}, daemon=True)
            for keeps, _ in itertools.product((True, False), range(CLIENTS // 2))
        ]
        for each in clients:
            each.start()
        for gateway in (first := stack.programs(GATEWAY)):
            further(2 * CLIENTS)
            gateway.send_signal(signal.SIGTERM)
            psutil.wait_procs([gateway], timeout=LIMIT_S)
            further(2 * CLIENTS)
            while len(stack.programs(GATEWAY)) < 2:
                further(1)
        stopped.set()
        for each in clients:
            each.join(LIMIT_S)
        assert len(first) == 2
        assert not {gateway.pid for gateway in first} & {gateway.pid for gateway in stack.programs(GATEWAY)}
        assert set(statuses) == {200}
        assert errors == []
        assert stack.stop() == 0
