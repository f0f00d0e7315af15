"""The console while the cluster is reconfigured under load."""

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.support.browser import NewPage
from tests.support.reconfiguring_stack import HEAVY_RPS, LIMIT_S, reconfiguring_stack, under_load

pytestmark = [pytest.mark.browser, pytest.mark.slow]


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
