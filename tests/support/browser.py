"""Sizes and measures of a browser's page."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from playwright.async_api import Page

LIMIT_S = 30.0  # time limit for a change of the page
WIDE, NARROW = (1280, 900), (390, 844)  # pixels

NewPage = Callable[..., AbstractAsyncContextManager[Page]]


async def overflow_px(page: Page) -> int:
    """The page's width beyond its window's."""
    return int(await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
