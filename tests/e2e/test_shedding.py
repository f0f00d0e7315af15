"""`dilaserve up --shed`: on an idle cluster, too, a request that cannot meet its SLO is refused, under every policy."""

import asyncio

import httpx
import pytest

from dilaserve.stack.up_options import DEMO_MODEL
from tests.support.demo_questions import chat_request
from tests.support.stack import new_data_dir, running_stack
from tests.support.waiting import until

OPTIONS = ("--slots", "1", "--instances", "1x1", "--shed")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["dilaserve", "paper", "fixed"])
async def test_an_idle_cluster_refuses_an_slo_that_it_cannot_meet(policy: str) -> None:
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *OPTIONS, "--policy", policy) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as http:

            async def knows_the_costs() -> bool:
                nodes = (await http.get("/cluster")).json()["nodes"]
                return all(instance["step_latency_ms"] for node in nodes for instance in node["instances"])

            async def ask(i: int, **options: int) -> httpx.Response:
                return await http.post("/v1/chat/completions", json=chat_request(i, **options))

            await until(knows_the_costs)
            refused = await ask(0, slo_ms=1)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "slo_unattainable")
            assert int(refused.headers["retry-after"]) >= 1
            assert (await ask(0, slo_ms=60_000)).status_code == 200
            for i in range(8):
                assert (await ask(i, slo_ms=60_000)).status_code == 200
            # Several times the work that fits into the SLO, however slowly the requests arrive.
            burst = await asyncio.gather(*[ask(i, slo_ms=300, max_tokens=128) for i in range(80)])
            assert {reply.status_code for reply in burst} <= {200, 429}
            assert sum(reply.status_code == 429 for reply in burst) >= 10
        assert stack.stop() == 0
