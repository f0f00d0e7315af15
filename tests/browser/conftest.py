"""A real browser, headless, that fails a test on any error in its console."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from experiments.screenshots import find_chromium
from tests.support.browser import LIMIT_S, WIDE, NewPage
from tests.support.gateway import (
    changes,
    gateway,
    lonely_gateway,
    own_gateway,
    own_lonely_gateway,
    own_scheduler,
    scheduler,
    settings,
)

DISTURBED = "ERR_NETWORK_CHANGED"  # Chromium drops what it loads when a network interface of this machine comes or goes
RELOADS = 5

expect.set_options(timeout=LIMIT_S * 1000)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium: apt install chromium")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        await running.close()


@pytest.fixture
def new_page(browser: Browser) -> NewPage:
    """Opens a URL at a size; at the end the console may show no error except those that contain `expected`."""

    @asynccontextmanager
    async def opened(url: str, size: tuple[int, int] = WIDE, expected: str | None = None) -> AsyncIterator[Page]:
        page = await browser.new_page(viewport={"width": size[0], "height": size[1]})
        page.set_default_timeout(LIMIT_S * 1000)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        try:
            await page.goto(url)
            for _ in range(RELOADS):
                if not any(DISTURBED in error for error in errors):
                    break
                errors.clear()
                await page.reload()
            yield page
            assert [
                error for error in errors if DISTURBED not in error and (not expected or expected not in error)
            ] == []
        finally:
            await page.close()

    return opened
