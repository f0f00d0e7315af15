"""The console before a whole stack: real workers, real load, a worker that dies."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import httpx
import pytest
from playwright.async_api import Locator, expect

from dilaserve.stack.up_options import DEMO_MODEL
from tests.support.browser import LIMIT_S, NewPage
from tests.support.stack import Stack, new_data_dir, running_stack
from tests.support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
QUESTION = (
    "I have 9 cookies, get 3 more and share them equally among 2 students. How many cookies does each student get?"
)
SOME = re.compile("[1-9]")
CHARTS = {  # pattern of the values, if there are any
    "Requests": SOME,
    "SLO attainment": SOME,
    "Mean threshold": SOME,
    "Latency": re.compile(r"\d\.\d+ s p50"),
    "Requests in the cell": SOME,
    "Output": SOME,
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, "--instances", "2x1") as running:
        yield running


@asynccontextmanager
async def load(stack: Stack) -> AsyncIterator[None]:
    """Two clients that ask one question after another."""
    body = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}

    async def ask_on() -> None:
        async with httpx.AsyncClient(base_url=stack.url, timeout=LIMIT_S) as client:
            while True:
                reply = await client.post("/v1/chat/completions", json=body)
                reply.raise_for_status()

    tasks = [asyncio.create_task(ask_on()) for _ in range(2)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def moved(plot: Locator, still: bytes) -> bool:
    return await plot.locator("canvas").screenshot() != still


async def test_the_charts_move_under_load(stack: Stack, new_page: NewPage) -> None:
    async with new_page(f"{stack.url}/#cluster") as page:
        plots = {name: page.locator(f"[data-chart='{name}']") for name in CHARTS}
        still = {name: await plot.locator("canvas").screenshot() for name, plot in plots.items()}
        async with load(stack):
            for name, plot in plots.items():
                await expect(plot.locator(".chart-values")).to_have_text(CHARTS[name])
                await until(partial(moved, plot, still[name]))


async def test_requests_in_progress_move_to_the_finished_ones_under_load(stack: Stack, new_page: NewPage) -> None:
    async with new_page(f"{stack.url}/#requests") as page, load(stack):
        await expect(page.locator("#unfinished tbody tr").first).to_contain_text("running")
        first = page.locator("#finished tbody tr").first
        await expect(first).to_contain_text("The answer is")
        shown = await first.get_attribute("data-key")
        assert shown
        await expect(first).not_to_have_attribute("data-key", shown)
        await page.get_by_label("Outcome").select_option("SLO met")
        await expect(page.locator("#unfinished")).to_be_hidden()
        await first.get_by_role("button").click()
        await expect(page.get_by_role("region", name="Steps")).to_be_visible()


async def test_the_cluster_view_shows_memory_and_services_under_load(stack: Stack, new_page: NewPage) -> None:
    async with new_page(f"{stack.url}/#cluster") as page, load(stack):
        for service in ("gateway", "predictor", "scheduler"):
            await expect(page.locator("#services tbody tr").filter(has_text=service)).to_contain_text("running")
        await expect(page.locator(".instance").first).to_contain_text(re.compile(r"Memory[\d.]+ [MG]iB of"))
        await expect(page.locator("#storage tbody tr").filter(has_text="OUTCOMES")).to_contain_text(SOME)


async def test_a_request_shows_the_threshold_and_instance_of_each_step(stack: Stack, new_page: NewPage) -> None:
    async with new_page(stack.url) as page:
        await page.get_by_label("Prompt").fill(QUESTION)
        await page.get_by_role("button", name="Run both").click()
        await expect(page.locator("#comparison")).to_have_text(re.compile("A took .* B "))
        await page.get_by_role("article", name="Run A").locator("a").click()
        steps = page.get_by_role("region", name="Steps").locator("tbody tr")
        await expect(steps.first).to_contain_text(re.compile(r"recompute.*0\.\d+.*worker-"))
        steps_text = await page.locator("#detail .facts div", has_text=re.compile("^Steps")).locator("dd").inner_text()
        assert await steps.count() == int(steps_text.split()[0])


async def test_the_view_shows_a_worker_that_dies_and_restarts(stack: Stack, new_page: NewPage) -> None:
    async with new_page(f"{stack.url}/#cluster") as page:
        names = page.locator(".instance-name")
        await expect(names).to_have_count(2)
        before = await names.all_inner_texts()
        stack.program("services.worker").kill()
        known = page.locator(", ".join(f"[data-instance='{name}']" for name in before))
        await expect(known).to_have_count(1)
        await expect(names).to_have_count(2)
