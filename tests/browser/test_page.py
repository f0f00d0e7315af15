"""The console in a real browser, before a gateway whose scheduler answers at once."""


import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import NARROW, WIDE, NewPage, overflow_px
from tests.integration.gateway.conftest import RunningGateway

pytestmark = pytest.mark.browser
VIEWS = ["playground", "cluster", "requests", "plans"]


async def run_both(page: Page) -> None:
    """Ask a short question with the keyboard and wait for both replies."""
    await page.get_by_label("Prompt").fill("How many pears?")
    await page.get_by_label("Slow motion").uncheck()
    await page.get_by_label("Prompt").press("Control+Enter")
    for run in ("A", "B"):
        await expect(page.get_by_label(f"Reply of run {run}")).to_have_text("The answer is 29.")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280", "390"])
async def test_every_view_fits_and_the_playground_completes(
    gateway: RunningGateway, new_page: NewPage, size: tuple[int, int]
) -> None:
    async with new_page(gateway.url, size) as page:
        await run_both(page)
        filled = page.locator("[data-run=A] .cell.committed")
        assert await filled.count() == len("The answer is 29.") + 47
        for view in VIEWS:
            await page.get_by_role("link", name=view.capitalize(), exact=True).click()
            await expect(page.get_by_role("heading", name=view.capitalize(), exact=True)).to_be_visible()
            assert await overflow_px(page) == 0
        await page.get_by_role("link", name="Requests").click()
        await expect(page.locator("#requests tbody tr")).to_have_count(2)
