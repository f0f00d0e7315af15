"""With shedding, the scheduler refuses a request that cannot meet its SLO: a 429 before a stream begins."""

from collections.abc import Callable
from typing import Any

import pytest

from shared.messages.requests import OutcomeStatus
from tests.builders import scheduler_stats
from tests.support.gateway import RunningGateway
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import until

CHAT: dict[str, Any] = {"model": "tiny-llada", "messages": [{"role": "user", "content": "How many pears?"}]}


@pytest.fixture
async def shedding(gateway: RunningGateway, scheduler: AnsweringScheduler) -> Callable[[OutcomeStatus], None]:
    """Chooses the status of the following requests, in a cell that sheds."""
    scheduler.stats = scheduler_stats(shed=True)

    async def is_known() -> bool:
        assert (await gateway.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
        return scheduler.requests[-1].may_refuse

    await until(is_known)

    def end_with(status: OutcomeStatus) -> None:
        scheduler.status = status

    return end_with


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_request_gets_a_429_with_retry_after_and_may_be_repeated(
    gateway: RunningGateway, shedding: Callable[[OutcomeStatus], None], *, stream: bool
) -> None:
    shedding(OutcomeStatus.REFUSED)
    headers = {"Idempotency-Key": f"pears-{stream}"}
    refused = await gateway.http.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("slo_unattainable", "slo_ms")
    shedding(OutcomeStatus.COMPLETED)
    accepted = await gateway.http.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers)
    assert accepted.status_code == 200
    assert '"slo_met"' in accepted.text


async def test_only_a_cell_that_sheds_may_refuse(gateway: RunningGateway) -> None:
    await gateway.until("ready")
    assert (await gateway.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert not gateway.scheduler.requests[-1].may_refuse
