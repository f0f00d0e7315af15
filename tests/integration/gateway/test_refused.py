"""With shedding, the scheduler refuses a request that cannot meet its SLO: a 429 before a stream begins."""

import pytest

from shared.messages.requests import OutcomeStatus
from tests.builders import scheduler_stats
from tests.support.gateway import CHAT, ONE_CELL, RunningGateway
from tests.support.waiting import until

pytestmark = ONE_CELL


async def let_shed(gateway: RunningGateway, *, shed: bool) -> None:
    """Let the cell shed or not, and wait until its requests show that the gateway knows."""
    gateway.scheduler.stats = scheduler_stats(shed=shed)

    async def is_known() -> bool:
        assert (await gateway.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
        return gateway.scheduler.requests[-1].may_refuse == shed

    await until(is_known)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_request_gets_a_429_with_retry_after_and_may_be_repeated(
    gateway: RunningGateway, *, stream: bool
) -> None:
    await let_shed(gateway, shed=True)
    gateway.scheduler.status = OutcomeStatus.REFUSED
    headers = {"Idempotency-Key": f"pears-{stream}"}
    refused = await gateway.http.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("slo_unattainable", "slo_ms")
    gateway.scheduler.status = OutcomeStatus.COMPLETED
    accepted = await gateway.http.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers)
    assert accepted.status_code == 200
    assert '"slo_met"' in accepted.text


async def test_only_a_cell_that_sheds_may_refuse(gateway: RunningGateway) -> None:
    for shed in (True, False):
        await let_shed(gateway, shed=shed)
