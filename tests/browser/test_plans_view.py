"""The history of plans, as it grows."""

import time

import pytest
from playwright.async_api import expect

from shared.bus import Bus
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanEvent, PlanRecord, PlanState
from tests.browser.conftest import NARROW, NewPage, overflow_px
from tests.integration.gateway.conftest import RunningGateway

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def plan(state: PlanState, reason: str, *events: str) -> PlanRecord:
    now_s = time.time()
    return PlanRecord(
        plan_id="plan-1",
        decided_s=now_s,
        state=state,
        reason=reason,
        status="optimal",
        mean_threshold=0.82,
        slack_s=3.5,
        before=[InstanceSpec(node="local", gpus=(0, 1))],
        target=[InstanceSpec(node="local", gpus=(0,)), InstanceSpec(node="local", gpus=(1,))],
        events=[PlanEvent(at_s=now_s, text=text) for text in events],
    )


async def test_a_decision_appears_and_changes_its_state(bus: Bus, gateway: RunningGateway, new_page: NewPage) -> None:
    async with new_page(f"{gateway.url}/#plans", NARROW) as page:
        await expect(page.locator("#plans")).to_contain_text("No decision yet")
        subject = bus.subjects.plans("plan-1")
        await bus.store(subject, plan(PlanState.RUNNING, "the mean threshold rises by 12 %"))
        decision = page.get_by_role("article").filter(has_text="the mean threshold rises by 12 %")
        await expect(decision).to_contain_text("running")
        await expect(decision).to_contain_text("TP 2 → 2")
        await bus.store(subject, plan(PlanState.DONE, "the mean threshold rises by 12 %", "stopped worker-local-0-1"))
        await expect(decision).to_contain_text("done")
        await decision.get_by_text("1 step").click()
        await expect(decision.get_by_role("listitem")).to_contain_text("stopped worker-local-0-1")
        assert await overflow_px(page) == 0
