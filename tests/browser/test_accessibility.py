"""axe-core finds no violation in any view, in either theme."""

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from shared.bus.client import Bus
from tests.builders import scheduler_stats
from tests.support.browser import NewPage
from tests.support.gateway import RunningGateway
from tests.support.plans import plan

pytestmark = [pytest.mark.browser, pytest.mark.slow]


async def violations(page: Page) -> list[str]:
    results = await Axe().run(page)
    return [f"{found['id']}: {found['nodes'][0]['html']}" for found in results.response["violations"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_view_is_accessible(bus: Bus, gateway: RunningGateway, new_page: NewPage, theme: str) -> None:
    await bus.publish(bus.subjects.stats("scheduler"), scheduler_stats())
    await bus.store(bus.subjects.plans("plan-1"), plan())
    async with new_page(gateway.url) as page:
        await page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
        await page.get_by_role("button", name="Run both").click()
        await expect(page.locator("#comparison")).not_to_be_empty()
        assert await violations(page) == []
        for view, shown in {"Cluster": ".instance", "Plans": ".plan", "Requests": "#finished tr"}.items():
            await page.get_by_role("link", name=view, exact=True).click()
            await expect(page.locator(shown).first).to_be_visible()
            assert await violations(page) == []
        await page.get_by_role("button", name="Open request").first.click()
        await expect(page.get_by_role("dialog")).to_contain_text("Mean threshold")
        assert await violations(page) == []
