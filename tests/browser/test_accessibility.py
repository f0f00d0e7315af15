"""axe-core finds no violation in any view, in either theme and at either width; the keyboard reaches every control."""

import asyncio
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from shared.bus.client import Bus
from tests.builders import scheduler_stats
from tests.support.browser import NARROW, WIDE, NewPage, check_accessibility
from tests.support.gateway import CHAT, RunningGateway
from tests.support.plans import plan
from tests.support.waiting import reached

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SHOWN = {"Playground": ".panel", "Cluster": ".instance", "Requests": "#finished tr", "Plans": ".plan"}
CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0']"
COUNT_CONTROLS = f"""() => [...document.querySelectorAll("{CONTROLS}")]
    .filter((each) => !each.disabled && each.checkVisibility()).length"""
MARK_FOCUSED = """() => {
    const { activeElement: focused } = document;
    if (focused === document.body || focused.dataset.reached) return false;
    focused.dataset.reached = true;
    return true;
}"""


async def show(page: Page, view: str) -> None:
    await page.get_by_role("link", name=view, exact=True).click()
    await expect(page.locator(SHOWN[view]).first).to_be_visible()


async def store_examples(bus: Bus) -> None:
    await bus.publish(bus.subjects.stats("scheduler"), scheduler_stats())
    await bus.store(bus.subjects.plans("plan-1"), plan())


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280", "390"])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_view_is_accessible(
    bus: Bus, gateway: RunningGateway, new_page: NewPage, theme: Literal["light", "dark"], size: tuple[int, int]
) -> None:
    async with new_page(gateway.url, size) as page:
        await page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        for view in ("Requests", "Plans"):  # without an entry
            await page.get_by_role("link", name=view, exact=True).click()
            await check_accessibility(page)
        await store_examples(bus)
        await show(page, "Playground")
        await page.get_by_role("button", name="Run both").click()
        await expect(page.locator("#comparison")).not_to_be_empty()
        gateway.scheduler.hold = asyncio.Event()
        asked = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=CHAT, timeout=None))
        await reached(lambda: len(gateway.scheduler.requests) == 3)
        for view in SHOWN:
            await show(page, view)
            await check_accessibility(page)
        await show(page, "Requests")
        for part, content in (("unfinished", "running"), ("finished", "Mean threshold")):
            await page.locator(f"#{part}").get_by_role("button", name="Open request").first.click()
            await expect(page.get_by_role("dialog")).to_contain_text(content)
            await check_accessibility(page)
            await page.keyboard.press("Escape")
        gateway.scheduler.hold.set()
        await asked


async def test_the_keyboard_reaches_every_control(bus: Bus, gateway: RunningGateway, new_page: NewPage) -> None:
    await gateway.http.post("/v1/chat/completions", json=CHAT)
    await store_examples(bus)
    async with new_page(gateway.url) as page:
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        for view in SHOWN:
            await show(page, view)
            await page.locator(".brand").focus()
            controls, found = await page.evaluate(COUNT_CONTROLS), int(await page.evaluate(MARK_FOCUSED))
            while True:
                await page.keyboard.press("Tab")
                if not await page.evaluate(MARK_FOCUSED):
                    break
                found += 1
            await page.evaluate("document.querySelectorAll('[data-reached]').forEach((e) => delete e.dataset.reached)")
            assert found == controls - 1, view  # the link to the content comes before the first one
