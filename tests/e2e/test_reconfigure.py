"""The embedded cluster replaces its instances while it serves."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from shared.bus.client import Bus
from shared.bus.plan_history import read_plans
from shared.messages.plans import PlanRecord, PlanState
from tests.support.reconfiguring_stack import HEAVY_RPS, LIGHT_RPS, LIMIT_S, reconfiguring_stack, under_load
from tests.support.stack import Stack, dilaserve
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(400)  # processes start many times, and other tests run beside


def ended(bus: Bus, number: int) -> Callable[[], Awaitable[bool]]:
    """Whether so many plans have been carried out."""

    async def holds() -> bool:
        return len([plan for plan in await changes(bus) if plan.state is not PlanState.RUNNING]) >= number

    return holds


async def changes(bus: Bus) -> list[PlanRecord]:
    """The plans that changed something, the oldest first."""
    return [plan for plan in reversed(await read_plans(bus, 100)) if plan.state is not PlanState.STAYED]


async def test_more_load_turns_one_tp_2_into_two_tp_1_and_less_turns_them_back(
    tiny_checkpoint_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reconfiguring_stack(tiny_checkpoint_dir, tmp_path, monkeypatch) as stack:
        async with under_load(stack) as (load, bus):
            load.rps = HEAVY_RPS
            await until(ended(bus, 1), LIMIT_S)
            load.rps = LIGHT_RPS
            await until(ended(bus, 2), LIMIT_S)
            first, second = (await changes(bus))[:2]
        assert set(load.statuses) == {200}, load.statuses
        assert [[spec.gpus for spec in plan.target] for plan in (first, second)] == [[(0,), (1,)], [(0, 1)]]
        assert {first.state, second.state} == {PlanState.DONE}, [first.events, second.events]
        assert stack.stop() == 0


@pytest.mark.slow
async def test_a_killed_reconfigurator_and_a_killed_worker_do_not_keep_it_from_its_target(
    tiny_checkpoint_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reconfiguring_stack(tiny_checkpoint_dir, tmp_path, monkeypatch) as stack:
        async with under_load(stack) as (load, bus):
            load.rps = HEAVY_RPS
            await until(under_way(bus), LIMIT_S)
            stack.program("services.reconfigurator").kill()
            await until(partial(runs, stack, 1), LIMIT_S)
            stack.program("services.worker").kill()
            await until(ended(bus, 1), LIMIT_S)
            [plan] = await changes(bus)
        assert set(load.statuses) == {200}, load.statuses
        assert plan.state is PlanState.DONE, plan.events
        assert stack.stop() == 0


async def runs(stack: Stack, tp_degree: int) -> bool:
    """Whether an instance of this TP degree serves."""
    report = json.loads(dilaserve("status", "--json", "--data-dir", stack.data_dir).stdout)
    return any(i["tp_degree"] == tp_degree and i["state"] == "ready" for i in report["instances"])


def under_way(bus: Bus) -> Callable[[], Awaitable[bool]]:
    """Whether a plan is being carried out."""

    async def holds() -> bool:
        return any(plan.state is PlanState.RUNNING for plan in await changes(bus))

    return holds
