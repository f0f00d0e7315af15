"""Sizes and measures of a browser's page."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

LIMIT_S = 30.0  # time limit for a change of the page
WIDE, NARROW = (1280, 900), (390, 844)  # pixels

NewPage = Callable[..., AbstractAsyncContextManager[Page]]


async def overflow_px(page: Page) -> int:
    """The page's width beyond its window's."""
    return int(await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


async def check_accessibility(page: Page) -> None:
    """Assert that axe-core finds no violation, and that the page fits its width."""
    results = await Axe().run(page)
    assert [f"{found['id']}: {found['nodes'][0]['html']}" for found in results.response["violations"]] == []
    assert await overflow_px(page) == 0
