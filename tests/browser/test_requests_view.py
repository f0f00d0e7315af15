"""The views of requests and of plans, also while the cluster is reconfigured under load."""

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.async_api import Page, expect

from services.gateway.settings import GatewaySettings
from shared.arrays import pack_float32, pack_int32
from shared.bus.client import Bus
from shared.messages.decisions import StepDecisions
from shared.messages.plans import PlanState
from shared.messages.requests import Outcome, OutcomeStatus
from shared.messages.steps import StepKind
from shared.text import TextModel
from tests.builders import serving_stats
from tests.support.browser import NARROW, WIDE, NewPage, overflow_px
from tests.support.gateway import CHAT, RunningGateway, ready
from tests.support.plans import plan
from tests.support.reconfiguring_stack import HEAVY_RPS, LIMIT_S, reconfiguring_stack, under_load
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import reached

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PAGE_ROWS = 25


def outcome(request_id: str, status: OutcomeStatus = OutcomeStatus.COMPLETED, **fields: Any) -> Outcome:
    return Outcome(request_id=request_id, status=status, arrival_s=1_700_000_000.0, **fields)


def migrated(request_id: str) -> Outcome:
    """A request that moved from w-1 to w-2 before its second step."""
    instances = ["w-1", "w-2"]
    stats = serving_stats(steps=2, mean_threshold=0.8, min_threshold=0.7, instances=instances, migrations=1)
    decisions = StepDecisions(
        instances=instances,
        at_s=pack_float32([0.1, 0.3]),
        blocks=pack_int32([0, 0]),
        kinds=pack_int32([StepKind.RECOMPUTE, StepKind.RECOMPUTE]),
        thresholds=pack_float32([0.9, 0.7]),
        allowed=pack_float32([0.9, 0.7]),
        time_left_s=pack_float32([0.4, 0.2]),
        placed_on=pack_int32([0, 1]),
        batch_tokens=pack_int32([96, 96]),
        batch_requests=pack_int32([1, 1]),
        step_latency_s=pack_float32([0.1, 0.1]),
    )
    return outcome(request_id, text="29", key="alice", priority=7, stats=stats, decisions=decisions, trace_id=TRACE_ID)


async def store(bus: Bus, *outcomes: Outcome) -> None:
    for each in outcomes:
        await bus.store(bus.subjects.outcomes(each.request_id), each)


def rows(page: Page, part: str) -> Any:
    return page.locator(f"#{part} tbody tr")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280", "390"])
async def test_a_request_is_in_progress_until_it_is_finished(
    gateway: RunningGateway, new_page: NewPage, size: tuple[int, int]
) -> None:
    gateway.scheduler.hold = asyncio.Event()
    asked = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=CHAT))
    await reached(lambda: len(gateway.scheduler.requests) == 1)
    async with new_page(f"{gateway.url}/#requests", size) as page:
        await expect(rows(page, "unfinished")).to_contain_text(["running"])
        await expect(page.locator("#finished")).to_contain_text("No request yet")
        await page.get_by_role("button", name="Open request").click()
        drawer = page.get_by_role("dialog")
        await expect(drawer).to_contain_text("running")
        gateway.scheduler.hold.set()
        await expect(drawer).to_contain_text("The answer is 29.")  # it follows the request
        await page.keyboard.press("Escape")
        await expect(rows(page, "finished")).to_have_count(1)
        await expect(page.locator("#unfinished")).to_contain_text("No request in progress")
        assert await overflow_px(page) == 0
    await asked


async def test_requests_are_selected_by_outcome_key_instance_and_id(
    bus: Bus, gateway: RunningGateway, new_page: NewPage
) -> None:
    patient = outcome("second", OutcomeStatus.FAILED, key="bob", stats=serving_stats(slo_s=86_400.0))
    await store(bus, migrated("first"), patient)
    async with new_page(f"{gateway.url}/#requests") as page:
        shown = rows(page, "finished")
        await expect(shown).to_have_count(2)
        for label, value, found in (("Key", "bob", "failed"), ("Instance", "w-2", "SLO met"), ("Id", "irs", "SLO met")):
            field = page.get_by_role("searchbox", name=label)
            await field.fill(value)
            await expect(shown).to_have_count(1)
            await expect(shown).to_contain_text(found)
            await field.fill("")
            await expect(shown).to_have_count(2)
        await page.get_by_label("Outcome").select_option("Failed")
        await expect(shown).to_have_count(1)
        await expect(shown.get_by_role("cell", name="1 d", exact=True)).to_be_visible()
        await expect(page.get_by_role("heading", name="In progress")).to_be_hidden()
        await page.get_by_role("searchbox", name="Id").fill("first")
        await expect(page.locator("#finished")).to_contain_text("No request found")
        await page.get_by_role("button", name="Clear").click()
        await expect(shown).to_have_count(2)


async def test_a_request_that_becomes_unverified_is_shown_so(
    bus: Bus, gateway: RunningGateway, new_page: NewPage
) -> None:
    await store(bus, migrated("first"))
    async with new_page(f"{gateway.url}/#requests") as page:
        await expect(rows(page, "finished")).to_contain_text(["SLO met"])
        await store(bus, msgspec.structs.replace(migrated("first"), unverified=True))
        await expect(rows(page, "finished")).to_contain_text(["unverified"])


async def test_pages_are_turned_with_the_keyboard(bus: Bus, gateway: RunningGateway, new_page: NewPage) -> None:
    await store(bus, *(outcome(f"r{number:02}", OutcomeStatus.CANCELLED) for number in range(PAGE_ROWS + 2)))
    async with new_page(f"{gateway.url}/#requests") as page:
        shown, pages = rows(page, "finished"), page.get_by_role("group", name="Pages of finished requests")
        await expect(shown).to_have_count(PAGE_ROWS)
        await expect(shown.first).to_contain_text("Nov")  # a date, as they arrived on another day
        await pages.get_by_role("button", name="Next").press("Enter")
        await expect(shown).to_have_count(2)
        await expect(pages).to_contain_text("Page 2 of 2")
        await store(bus, outcome("new", OutcomeStatus.CANCELLED))  # it does not move the page
        await pages.get_by_role("button", name="Previous").press("Enter")
        await expect(shown.first).to_contain_text("new")
        await shown.first.get_by_role("button").press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text("cancelled")


async def test_the_details_have_key_priority_migrations_and_a_link_to_the_trace(
    bus: Bus, settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, new_page: NewPage
) -> None:
    linking = msgspec.structs.replace(settings, trace_url="http://127.0.0.1:1/trace/{trace_id}")
    async with ready(linking, text) as gateway:
        await store(bus, migrated("moved"))
        async with new_page(f"{gateway.url}/#requests/moved", NARROW) as page:
            drawer = page.get_by_role("dialog")
            for fact in ("Arrived", "Keyalice", "Priority7", "Migrations1"):
                await expect(drawer.locator(".facts")).to_contain_text(fact)
            await expect(drawer.get_by_role("listitem")).to_have_text(["Step 1, at 300 ms: w-1 → w-2"])
            await expect(drawer.get_by_role("region", name="Steps").locator("tbody tr")).to_have_count(2)
            link = drawer.get_by_role("link", name=TRACE_ID[:8])
            await expect(link).to_have_attribute("href", f"http://127.0.0.1:1/trace/{TRACE_ID}")
            assert await overflow_px(page) == 0


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


async def test_the_view_shows_a_transition_and_its_reason(
    tiny_checkpoint_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_page: NewPage
) -> None:
    with reconfiguring_stack(tiny_checkpoint_dir, tmp_path, monkeypatch) as stack:
        async with new_page(f"{stack.url}/#cluster") as page, under_load(stack) as (load, _):
            wide, narrow = (page.locator(".instance").filter(has_text=f"TP {tp}") for tp in (2, 1))
            await expect(wide).to_have_count(1)
            load.rps = HEAVY_RPS
            await expect(page.locator("[data-chart='Requests'] .chart-values")).to_have_text(re.compile("[1-9]"))
            await expect(narrow).to_have_count(2, timeout=LIMIT_S * 1000)
            await expect(wide).to_have_count(0)
            await page.get_by_role("link", name="Plans").click()
            change = page.get_by_role("article").filter(has_text="TP 2 →").last
            await expect(change).to_contain_text("done", timeout=LIMIT_S * 1000)
            await expect(change.locator("p")).not_to_be_empty()
