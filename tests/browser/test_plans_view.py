"""The history of plans, as it grows."""

import pytest
from playwright.async_api import expect

from shared.bus.client import Bus
from shared.messages.plans import PlanState
from tests.support.browser import NARROW, NewPage, overflow_px
from tests.support.gateway import RunningGateway
from tests.support.plans import plan

pytestmark = [pytest.mark.browser, pytest.mark.slow]


async def test_a_decision_appears_and_changes_its_state(bus: Bus, gateway: RunningGateway, new_page: NewPage) -> None:
    async with new_page(f"{gateway.url}/#plans", NARROW) as page:
        await expect(page.locator("#plans")).to_contain_text("No decision yet")
        await expect(page.locator("#plans-state")).to_contain_text("No reconfigurator runs")
        subject = bus.subjects.plans("plan-1")
        await bus.store(subject, plan(PlanState.RUNNING, "the mean threshold rises by 12 %"))
        decision = page.get_by_role("article").filter(has_text="the mean threshold rises by 12 %")
        await expect(decision).to_contain_text("running")
        await expect(decision).to_contain_text("TP 2 → 2")
        await bus.store(subject, plan(PlanState.DONE, "the mean threshold rises by 12 %", "stopped worker-local-0_1"))
        await expect(decision).to_contain_text("done")
        await decision.get_by_text("1 step").click()
        await expect(decision.get_by_role("listitem")).to_contain_text("stopped worker-local-0_1")
        assert await overflow_px(page) == 0
