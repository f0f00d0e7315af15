"""Requests that cannot meet their SLO are refused, by the work that the scheduler publishes."""

import time
from typing import Any

import msgspec

from services.gateway.settings import GatewaySettings
from shared.text import TextModel
from tests.builders import work_group, working_stats
from tests.support.gateway import running
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import until

CHAT: dict[str, Any] = {"model": "tiny-llada", "messages": [{"role": "user", "content": "How many pears?"}]}


async def test_a_request_that_would_be_late_gets_a_429_with_retry_after(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler
) -> None:
    async with running(msgspec.structs.replace(settings, shed=True), text) as gateway:
        await gateway.until("ready")

        async def is_refused() -> bool:
            scheduler.stats = working_stats(time.time(), groups=[work_group(requests=1250, steps=8.0)])
            reply = await gateway.http.post("/v1/chat/completions", json=CHAT | {"slo_ms": 2000})
            if reply.status_code != 429:
                return False
            assert reply.json()["error"]["code"] == "slo_unattainable"
            assert int(reply.headers["retry-after"]) >= 98
            return True

        await until(is_refused)
        patient = await gateway.http.post("/v1/chat/completions", json=CHAT | {"slo_ms": 600_000})
        assert patient.status_code == 200
