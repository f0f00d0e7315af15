"""Presence of instances by their heartbeats."""

import asyncio
from typing import cast

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.bus.codec import encode
from shared.bus.instance_watch import REPLACED_TTL_S, STALL_S, InstanceWatch
from shared.bus.subjects import INSTANCE_TTL_S
from shared.messages.instances import InstanceState
from shared.tasks import cancel
from tests.builders import instance, model_card


class Cell:
    """A watch whose clock the test sets, and what it reported."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.updated: list[str] = []
        self.lost: list[str] = []
        self.watch = InstanceWatch(
            accept=lambda instance: instance.model.name == "m",
            on_update=lambda instance: self.updated.append(instance.instance_id),
            on_loss=self.lost.append,
            clock=lambda: self.now_s,
        )

    async def heartbeat(self, *instance_ids: str, **fields: object) -> None:
        for instance_id in instance_ids:
            await self.receive(instance_id, encode(instance(instance_id, **fields)))

    async def receive(self, instance_id: str, data: bytes) -> None:
        await self.watch.receive(Msg(cast("Client", None), subject=f"$KV.instances-c.{instance_id}", data=data))

    def present(self) -> list[str]:
        return [instance.instance_id for instance in self.watch.instances()]


async def test_a_silent_instance_is_lost_after_its_ttl() -> None:
    cell = Cell()
    await cell.heartbeat("i-1")
    cell.now_s += INSTANCE_TTL_S
    assert cell.present() == ["i-1"]
    cell.now_s += 0.1
    assert cell.present() == []
    assert cell.lost == ["i-1"]


async def test_a_silent_instance_is_lost_sooner_if_a_newer_one_has_its_name() -> None:
    cell = Cell()
    await cell.heartbeat("w-1", "v-1")
    cell.now_s += 0.1
    await cell.heartbeat("w-2")
    cell.now_s += REPLACED_TTL_S
    assert cell.present() == ["v-1", "w-2"]


async def test_silence_counts_from_the_reconnect_to_the_bus() -> None:
    cell, is_connected = Cell(), False
    cell.watch.is_connected = lambda: is_connected
    await cell.heartbeat("i-1")
    cell.now_s += 2 * INSTANCE_TTL_S
    assert cell.present() == ["i-1"]
    is_connected = True
    cell.now_s += INSTANCE_TTL_S
    assert cell.present() == ["i-1"]
    cell.now_s += 0.1
    assert cell.present() == []


async def test_time_in_which_the_watch_itself_was_stalled_does_not_count() -> None:
    cell = Cell()
    running = asyncio.create_task(cell.watch.run())
    await asyncio.sleep(0)  # until it runs
    await cell.heartbeat("i-1")
    cell.now_s += 2 * INSTANCE_TTL_S
    assert cell.present() == ["i-1"]
    for _ in range(int(INSTANCE_TTL_S / STALL_S)):
        cell.now_s += STALL_S
        assert cell.present() == ["i-1"]
    cell.now_s += 0.1
    assert cell.present() == []
    await cancel([running])


async def test_two_live_instances_of_one_name_both_keep_the_whole_ttl() -> None:
    cell = Cell()
    await cell.heartbeat("w-1")
    cell.now_s += 0.1
    await cell.heartbeat("w-2")
    cell.now_s += 0.1
    await cell.heartbeat("w-1", "w-2")
    cell.now_s += REPLACED_TTL_S + 0.1
    assert cell.present() == ["w-1", "w-2"]


async def test_a_deleted_instance_is_lost_at_once() -> None:
    cell = Cell()
    await cell.heartbeat("i-1")
    await cell.receive("i-1", b"")
    assert cell.lost == ["i-1"]


async def test_only_new_and_changed_instances_are_reported() -> None:
    cell = Cell()
    await cell.heartbeat("i-1", heartbeat=1)
    await cell.heartbeat("i-1", heartbeat=2, requests=3)
    used = {"memory_bytes": 1, "used_cache_tokens": 2, "used_prefix_tokens": 3, "wanted_tokens": 5, "cached_tokens": 4}
    used |= {"unverified_s": 6}
    await cell.heartbeat("i-1", heartbeat=2, requests=3, **used)
    assert [known.used_cache_tokens for known in cell.watch.instances()] == [2]
    await cell.heartbeat("i-1", heartbeat=3, state=InstanceState.DRAINING, drain_s=9.0)
    await cell.heartbeat("i-1", heartbeat=4, state=InstanceState.DRAINING, drain_s=9.0, draining_s=1.0)
    assert cell.updated == ["i-1", "i-1"]


IMPOSSIBLE: list[dict[str, int]] = [
    *({"max_batch_requests": 1 << 40}, {"max_batch_requests": 0}, {"max_batch_tokens": -1}),
    *({"cache_tokens": 1 << 31}, {"tp_degree": 0}),
]


@pytest.mark.parametrize(
    ("instance_id", "data"),
    [
        ("i-1", encode(instance("i-1", model=model_card(name="x")))),
        ("i-1", b"\xc1"),
        ("i-1", encode(instance("other-1"))),
        *(("i-1", encode(instance("i-1", **fields))) for fields in IMPOSSIBLE),
        *((name.rpartition(".")[2], encode(instance(name))) for name in ("a.b-1", "a b", "", "x" * 129, "a\n")),
    ],
)
async def test_a_rejected_unreadable_or_impossible_registration_is_absent(instance_id: str, data: bytes) -> None:
    cell = Cell()
    await cell.receive(instance_id, data)
    assert cell.present() == cell.updated == []
