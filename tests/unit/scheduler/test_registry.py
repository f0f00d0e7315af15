"""Which instances the scheduler takes for gone."""

import asyncio

import pytest
from nats.aio.client import Client
from structlog.testing import capture_logs

from services.scheduler.events import InstanceLost
from services.scheduler.io.event_queue import EventQueue
from services.scheduler.io.instance_events import REPLACED_TTL_S, InstanceEvents
from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.bus.subjects import INSTANCE_TTL_S
from shared.messages.instances import Instance, ModelCard

CARD = ModelCard(name="m", max_length=512, mask_token_id=1, eos_token_id=2, vocab_size=100)


def registration(instance_id: str, cache_tokens: int = 0) -> bytes:
    return encode(Instance(instance_id=instance_id, model=CARD, tp_degree=1, cache_tokens=cache_tokens))


async def gone(heard: list[str], after_s: float) -> list[str]:
    """Of instances heard in this order, those taken for gone after so much silence."""
    inbox = EventQueue()
    registry = InstanceEvents(Bus(Client(), "c"), CARD.name, inbox, needs_profile=False, caching=False)
    for instance_id in heard:
        registry._update(instance_id, registration(instance_id))
    registry._expire(asyncio.get_running_loop().time() + after_s)
    return [event.instance_id for event in await inbox.take(0.0) if isinstance(event, InstanceLost)]


async def test_an_instance_is_gone_sooner_where_one_of_its_name_has_come_since() -> None:
    assert await gone(["w-1", "w-2"], REPLACED_TTL_S) == ["w-1"]
    assert await gone(["w-1", "v-2"], REPLACED_TTL_S) == []


async def test_two_that_live_under_one_name_are_each_allowed_the_whole_time() -> None:
    assert await gone(["w-1", "w-2", "w-1", "w-2"], REPLACED_TTL_S) == []
    assert await gone(["w-1", "w-2", "w-1", "w-2"], INSTANCE_TTL_S) == ["w-1", "w-2"]


@pytest.mark.parametrize(("caching", "cache_tokens", "warnings"), [(False, 512, 1), (True, 512, 0), (False, 0, 0)])
async def test_a_cache_that_is_not_used_is_told_of_once(*, caching: bool, cache_tokens: int, warnings: int) -> None:
    registry = InstanceEvents(Bus(Client(), "c"), CARD.name, EventQueue(), needs_profile=False, caching=caching)
    with capture_logs() as said:
        for _ in range(2):
            registry._update("w-1", registration("w-1", cache_tokens))
    assert [line["log_level"] for line in said].count("warning") == warnings
