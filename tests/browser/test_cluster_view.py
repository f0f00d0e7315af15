"""The cluster view follows the instances and the scheduler."""

import re

import pytest
from playwright.async_api import expect

from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.messages.instances import Instance, InstanceState
from shared.text import TextModel
from tests.support.browser import NARROW, NewPage, overflow_px
from tests.support.gateway import RunningGateway
from tests.support.scheduler import AnsweringScheduler

pytestmark = pytest.mark.browser


async def test_the_view_shows_instances_join_drain_and_leave(
    gateway: RunningGateway, scheduler: AnsweringScheduler, bus: Bus, text: TextModel, new_page: NewPage
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
        scheduler.instance_state = InstanceState.DRAINING
        await expect(first).to_contain_text("draining")
        await bucket.delete(wide.instance_id)
        await expect(node).to_have_count(0)


@pytest.mark.slow
async def test_the_status_shows_why_no_request_is_served(lonely_gateway: RunningGateway, new_page: NewPage) -> None:
    async with new_page(f"{lonely_gateway.url}/#cluster") as page:
        await expect(page.locator("#status")).to_have_text("no scheduler leads; no instance is ready")
        await expect(page.locator("#nodes")).to_have_text(re.compile("^No instance"))
