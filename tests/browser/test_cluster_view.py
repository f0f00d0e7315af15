"""The cluster view follows the instances and the scheduler."""

import re
from typing import Any

import pytest
from playwright.async_api import expect

from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.messages.instances import Instance, InstanceState
from shared.text import TextModel
from tests.support.browser import NARROW, NewPage, overflow_px
from tests.support.gateway import RunningGateway

pytestmark = pytest.mark.browser
DRAW_CHARTS = """async (lastS) => {
  const draw = CanvasRenderingContext2D.prototype.fillText;
  const labels = {};
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
    const width = this.measureText(text).width;
    const start = x - { left: 0, center: width / 2, right: width }[this.textAlign];
    const title = this.canvas.closest("figure").dataset.chart;
    (labels[title] ??= []).push([String(text), start, start + width, this.canvas.width]);
    return draw.call(this, text, x, y, ...more);
  };
  const { Charts } = await import("./console/js/charts.js");
  const place = document.body.appendChild(document.createElement("div"));
  place.className = "charts";
  const charts = new Charts(place, document.createElement("div"));
  const load = { rps: 1, running: 1, waiting: 0, infeasible: 0, tokens_per_s: 1 };
  charts.show(Array.from({ length: 300 }, (_, i) => ({ ...load, t_s: lastS - 299 + i })));
  await new Promise((resolve) => setTimeout(resolve));
  return labels;
}"""


async def test_the_view_shows_instances_join_drain_and_leave(
    gateway: RunningGateway, bus: Bus, text: TextModel, new_page: NewPage
) -> None:
    bucket = await bus.bucket(bus.subjects.instances_bucket)
    wide = Instance(instance_id="wide-1", model=text.card, tp_degree=4, node="node-2", gpus=[0, 1, 2, 3], device="cuda")
    async with new_page(f"{gateway.url}/#cluster", NARROW) as page:
        first = page.locator("[data-instance=worker-test]")
        await expect(first).to_contain_text("ready")
        await bucket.put(wide.instance_id, encode(wide))
        node = page.get_by_role("article", name="Node node-2")
        await expect(node.locator(".gpu")).to_have_text(["GPU 0", "GPU 1", "GPU 2", "GPU 3"])
        await expect(node).to_contain_text("TP 4")
        assert await overflow_px(page) == 0
        gateway.scheduler.instance_state = InstanceState.DRAINING
        await expect(first).to_contain_text("draining")
        await bucket.delete(wide.instance_id)
        await expect(node).to_have_count(0)


@pytest.mark.slow
async def test_the_labels_of_charts_are_whole_and_those_of_counts_are_integers(
    gateway: RunningGateway, new_page: NewPage
) -> None:
    async with new_page(gateway.url) as page:
        labels = await page.evaluate(DRAW_CHARTS, 1_700_000_040)  # a whole minute, at the right end
    drawn = [label for of_chart in labels.values() for label in of_chart]
    assert [text for text, start, end, width in drawn if start < 0 < end or start < width < end] == []
    ticks = [text for text, *_ in labels["Requests in the cell"] if ":" not in text]
    assert ticks
    assert all(tick.isdecimal() for tick in ticks)


@pytest.mark.slow
async def test_the_view_shows_services_storage_and_caches(
    gateway: RunningGateway, bus: Bus, text: TextModel, new_page: NewPage
) -> None:
    sizes: dict[str, Any] = {"cache_tokens": 100, "used_cache_tokens": 25, "max_memory_bytes": 1 << 31}
    caching = Instance(instance_id="caching", model=text.card, tp_degree=1, memory_bytes=1 << 30, **sizes)
    bucket = await bus.bucket(bus.subjects.instances_bucket)
    async with new_page(f"{gateway.url}/#cluster", NARROW) as page:
        await expect(page.locator("#services tbody tr")).to_contain_text(["gatewayrunning"])
        await expect(page.locator("#storage tbody tr").first).to_contain_text("REQUESTS")
        await bucket.put(caching.instance_id, encode(caching))
        shown = page.locator("[data-instance=caching]")
        await expect(shown).to_contain_text("25 of 100")
        await expect(shown).to_contain_text("1.0 GiB of 2.0 GiB")
        await expect(page.locator("[data-chart='KV cache in use'] .chart-values")).to_have_text("25.0 %")
        await page.get_by_role("button", name="1 hour").press("Enter")
        await expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")
        assert await overflow_px(page) == 0


@pytest.mark.slow
async def test_batches_and_their_progress_are_shown(gateway: RunningGateway, new_page: NewPage) -> None:
    upload: dict[str, Any] = {"files": {"file": ("a.jsonl", b"{}")}, "data": {"purpose": "batch"}}
    file_id = (await gateway.http.post("/v1/files", **upload)).json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    created = await gateway.http.post("/v1/batches", json=body)
    assert created.status_code == 200
    async with new_page(f"{gateway.url}/#cluster") as page:
        await expect(page.locator("#batches tbody tr")).to_contain_text(["failed"])  # its line is invalid
        await expect(page.locator("#keys-part")).to_be_hidden()


@pytest.mark.slow
async def test_the_status_shows_why_no_request_is_served(lonely_gateway: RunningGateway, new_page: NewPage) -> None:
    async with new_page(f"{lonely_gateway.url}/#cluster") as page:
        await expect(page.locator("#status")).to_have_text("no scheduler leads; no instance is ready")
        await expect(page.locator("#nodes")).to_have_text(re.compile("^No instance"))
