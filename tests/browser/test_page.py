"""The console in a real browser, before a gateway whose scheduler answers at once."""

import asyncio

import pytest
from playwright.async_api import Page, Route, expect

from shared.messages.requests import OutcomeStatus
from tests.support.browser import NARROW, WIDE, NewPage, overflow_px
from tests.support.gateway import RunningGateway
from tests.support.scheduler import ANSWER
from tests.support.waiting import reached

pytestmark = pytest.mark.browser
VIEWS = ["Playground", "Cluster", "Requests", "Plans"]
OUTPUT_TOKENS = 64


async def run_both(page: Page) -> None:
    """Ask with the keyboard alone and wait for both replies."""
    await page.get_by_label("Prompt").fill("How many pears?")
    await page.get_by_label("Slow motion").uncheck()
    await page.get_by_label("Prompt").press("Control+Enter")
    for run in ("A", "B"):
        await expect(page.get_by_label(f"Reply of run {run}")).to_have_text(ANSWER)


async def test_every_view_fits_and_the_playground_completes(gateway: RunningGateway, new_page: NewPage) -> None:
    for size in (WIDE, NARROW):
        async with new_page(gateway.url, size) as page:
            await run_both(page)
            await expect(page.locator("[data-run=A] .cell.committed")).to_have_count(OUTPUT_TOKENS)
            heights = "labels => labels.map(label => label.offsetHeight)"
            assert len(set(await page.locator(".slider label").evaluate_all(heights))) == 1  # none is on two lines
            for view in VIEWS:
                await page.get_by_role("link", name=view, exact=True).click()
                await expect(page.get_by_role("heading", name=view, exact=True)).to_be_visible()
                assert await overflow_px(page) == 0
            await page.get_by_role("link", name="Requests").click()
            await expect(page.locator("#finished tbody tr")).to_have_count(len(gateway.scheduler.requests))


@pytest.mark.slow
async def test_the_canvas_has_the_models_blocks_and_greys_only_what_follows_the_text(
    gateway: RunningGateway, new_page: NewPage
) -> None:
    async with new_page(gateway.url) as page:
        await run_both(page)
        sizes = "blocks => blocks.map(block => block.children.length)"
        blocks = await page.locator("[data-run=A] .block").evaluate_all(sizes)
        assert blocks == [request.block_length for request in gateway.scheduler.requests[:1]] * len(blocks)
        await expect(page.locator("[data-run=A] .cell.unused")).to_have_count(OUTPUT_TOKENS - len(ANSWER))
        assert "unused" not in str(await page.locator("[data-run=A] .cell").nth(len(ANSWER) - 1).get_attribute("class"))


@pytest.mark.slow
async def test_without_a_connection_the_old_run_is_removed_and_the_header_shows_it(
    gateway: RunningGateway, new_page: NewPage
) -> None:
    async with new_page(gateway.url, expected="ERR_INTERNET_DISCONNECTED") as page:
        await run_both(page)
        await page.context.set_offline(True)
        await page.get_by_role("button", name="Run both").click()
        await expect(page.get_by_label("Reply of run A")).to_have_text("cannot reach the gateway")
        await expect(page.locator("#status")).to_have_text("Connection lost")
        for old in (".cell.committed", "dd"):
            await expect(page.locator(f"[data-run=A] {old}")).to_have_count(0)


@pytest.mark.slow
async def test_a_run_waits_for_its_first_step_and_shows_its_text_before_its_end(
    gateway: RunningGateway, new_page: NewPage
) -> None:
    sent, gateway.scheduler.hold = asyncio.Event(), asyncio.Event()

    async def send(route: Route) -> None:
        await sent.wait()
        await route.continue_()

    async with new_page(gateway.url) as page:
        await page.route("**/v1/chat/completions", send)
        await page.get_by_role("button", name="Run both").click()
        panel = page.get_by_role("article", name="Run A")
        await expect(panel.locator(".badge")).to_have_text("waiting for an instance")
        sent.set()
        await expect(panel.get_by_label("Reply of run A")).to_have_text(ANSWER)
        await expect(panel.locator(".badge")).to_have_text("running")
        gateway.scheduler.hold.set()
        await expect(panel.locator(".badge")).to_have_text("SLO met")


@pytest.mark.slow
async def test_a_page_whose_script_has_not_arrived_is_loading(gateway: RunningGateway, new_page: NewPage) -> None:
    arrived = asyncio.Event()

    async def send(route: Route) -> None:
        await arrived.wait()
        await route.continue_()

    async with new_page(gateway.url) as page:
        await page.route("**/js/panel.js", send)
        await page.reload(wait_until="commit")
        await expect(page.locator("#loading")).to_be_visible()
        arrived.set()
        await expect(page.get_by_role("heading", name="Playground")).to_be_visible()
        await expect(page.locator("#loading")).to_have_count(0)


@pytest.mark.slow
async def test_a_template_is_filled_in_on_its_canvas(gateway: RunningGateway, new_page: NewPage) -> None:
    gateway.scheduler.answer = lambda _: "12345"
    async with new_page(gateway.url) as page:
        await page.get_by_label("Slow motion").uncheck()
        await page.get_by_label("Template").fill("x=<mask:2>, y=<mask:3>.")
        await page.get_by_role("button", name="Run both").click()
        for run in ("A", "B"):
            await expect(page.get_by_label(f"Reply of run {run}")).to_have_text("x=12, y=345.")
        await expect(page.locator("[data-run=A] .cell")).to_have_count(32)
        await expect(page.locator("[data-run=A] .cell.pinned")).to_have_count(27)
        canvas = page.get_by_role("article", name="Run A").locator(".canvas")
        await canvas.focus()
        await page.keyboard.press("ArrowRight")
        await expect(page.locator("[data-run=A] .readout")).to_have_text("Position 0: “x”, given")


@pytest.mark.slow
async def test_a_reply_has_the_form_of_a_schema(gateway: RunningGateway, new_page: NewPage) -> None:
    gateway.scheduler.answer = lambda _: "29"
    async with new_page(gateway.url) as page:
        await page.get_by_label("Slow motion").uncheck()
        schema = page.get_by_label("JSON schema")
        run = page.get_by_role("article", name="Run A").get_by_role("button", name="Run")
        await schema.fill('{"type": "integer"')
        await run.click()
        assert "This is not JSON" in await schema.evaluate("field => field.validationMessage")
        await schema.fill('{"type": "integer"}')
        await run.click()
        await expect(page.get_by_label("Reply of run A")).to_have_text("29")
        assert gateway.scheduler.requests[0].pattern


@pytest.mark.slow
async def test_the_second_run_has_a_shorter_slo_than_the_first_took_until_one_is_set(
    gateway: RunningGateway, new_page: NewPage
) -> None:
    async with new_page(gateway.url) as page:
        await run_both(page)
        first, second = gateway.scheduler.requests
        value, unit = (await page.locator("[data-run=A] .facts dd").first.inner_text()).split()
        latency_s = float(value) / {"ms": 1000, "s": 1}[unit]
        assert second.slo_s is not None
        assert second.slo_s <= max(0.05, 0.9 * latency_s + 0.01)  # as the latency is rounded
        assert (first.min_threshold, second.min_threshold) == (0, 0.7)
        await page.locator("[data-run=B]").get_by_label("SLO").press("End")
        await page.get_by_role("button", name="Run both").click()
        await reached(lambda: 60 in {request.slo_s for request in gateway.scheduler.requests})


@pytest.mark.slow
async def test_the_canvas_shows_drafts_and_what_replaced_them(gateway: RunningGateway, new_page: NewPage) -> None:
    gateway.scheduler.drafts = True
    async with new_page(gateway.url) as page:
        await run_both(page)
        panel = page.get_by_role("article", name="Run A")
        await expect(panel.locator(".cell.committed.edited")).to_have_count(OUTPUT_TOKENS)
        await panel.locator(".canvas").focus()
        await page.keyboard.press("ArrowRight")
        await expect(panel.locator(".readout")).to_have_text(
            "Position 0: “T”, confidence 0.50, step 23, in place of “U”"
        )
        await panel.get_by_label("Step shown").focus()
        await page.keyboard.press("ArrowLeft")
        await expect(panel.locator(".cell.draft")).to_have_count(OUTPUT_TOKENS)


@pytest.mark.slow
async def test_the_canvas_and_its_steps_are_read_by_keyboard(gateway: RunningGateway, new_page: NewPage) -> None:
    async with new_page(gateway.url) as page:
        await run_both(page)
        panel = page.get_by_role("article", name="Run A")
        canvas = panel.locator(".canvas")
        await canvas.focus()
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("ArrowRight")
        await expect(panel.locator(".readout")).to_have_text("Position 1: “h”, confidence 0.56, step 1")
        await panel.get_by_label("Step shown").focus()
        await page.keyboard.press("Home")
        await expect(canvas).to_have_accessible_name(f"Canvas: 0 of {OUTPUT_TOKENS} tokens committed")
        await page.keyboard.press("ArrowRight")
        await expect(canvas).to_have_accessible_name(f"Canvas: 3 of {OUTPUT_TOKENS} tokens committed")


@pytest.mark.slow
async def test_a_request_opens_in_a_drawer_that_escape_closes(gateway: RunningGateway, new_page: NewPage) -> None:
    async with new_page(gateway.url) as page:
        await run_both(page)
        await page.get_by_role("article", name="Run A").locator("a").click()
        drawer = page.get_by_role("dialog")
        await expect(drawer).to_contain_text(ANSWER)
        await page.keyboard.press("Escape")
        await expect(drawer).to_be_hidden()
        await page.get_by_role("button", name="Open request").first.click()
        await expect(drawer).to_contain_text("Mean threshold")


@pytest.mark.slow
async def test_a_failed_request_shows_its_error(gateway: RunningGateway, new_page: NewPage) -> None:
    gateway.scheduler.status = OutcomeStatus.FAILED
    async with new_page(gateway.url) as page:
        await page.get_by_role("article", name="Run B").get_by_role("button", name="Run").click()
        await expect(page.get_by_label("Reply of run B")).to_have_text("the test chose failed")
        await expect(page.get_by_label("Reply of run A")).to_have_text("")


@pytest.mark.slow
async def test_the_theme_follows_the_system_until_one_is_chosen(gateway: RunningGateway, new_page: NewPage) -> None:
    async with new_page(gateway.url) as page:
        theme = page.locator("html")
        await page.emulate_media(color_scheme="dark")
        await expect(theme).to_have_attribute("data-theme", "dark")
        await page.get_by_role("button", name="Use the light theme").click()
        await page.reload()
        await expect(theme).to_have_attribute("data-theme", "light")
