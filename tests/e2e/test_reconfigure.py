"""The embedded cluster replaces its instances while it serves."""

import json
from functools import partial
from pathlib import Path

import pytest

from shared.bus.client import Bus
from shared.bus.plan_history import read_plans
from shared.messages.plans import PlanRecord, PlanState
from tests.support.reconfiguring_stack import HEAVY_RPS, LIGHT_RPS, LIMIT_S, reconfiguring_stack, under_load
from tests.support.stack import Stack, dilaserve
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(400)  # many process starts, beside other tests


async def ended(bus: Bus, number: int) -> bool:
    """Whether `number` plans have been executed."""
    return len([plan for plan in await changes(bus) if plan.state is not PlanState.RUNNING]) >= number


async def changes(bus: Bus) -> list[PlanRecord]:
    """The plans that changed the instances, oldest first."""
    return [plan for plan in reversed(await read_plans(bus, 100)) if plan.state is not PlanState.STAYED]


@pytest.mark.slow
async def test_more_load_turns_one_tp_2_into_two_tp_1_and_less_turns_them_back(
    tiny_checkpoint_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reconfiguring_stack(tiny_checkpoint_dir, tmp_path, monkeypatch) as stack:
        async with under_load(stack) as (load, bus):
            load.rps = HEAVY_RPS
            await until(partial(ended, bus, 1), LIMIT_S)
            load.rps = LIGHT_RPS
            await until(partial(ended, bus, 2), LIMIT_S)
            first, second = (await changes(bus))[:2]
        assert set(load.statuses) == {200}, load.statuses
        assert [[spec.gpus for spec in plan.target] for plan in (first, second)] == [[(0,), (1,)], [(0, 1)]]
        assert {first.state, second.state} == {PlanState.DONE}, [first.events, second.events]
        assert stack.stop() == 0


@pytest.mark.slow
async def test_a_plan_completes_despite_a_killed_reconfigurator_and_worker(
    tiny_checkpoint_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reconfiguring_stack(tiny_checkpoint_dir, tmp_path, monkeypatch) as stack:
        async with under_load(stack) as (load, bus):
            load.rps = HEAVY_RPS
            await until(partial(has_running_plan, bus), LIMIT_S)
            stack.program("services.reconfigurator").kill()
            await until(partial(serves, stack, 1), LIMIT_S)
            stack.program("services.worker").kill()
            await until(partial(ended, bus, 1), LIMIT_S)
            [plan] = await changes(bus)
        assert set(load.statuses) == {200}, load.statuses
        assert plan.state is PlanState.DONE, plan.events
        assert stack.stop() == 0


async def serves(stack: Stack, tp_degree: int) -> bool:
    """Whether an instance of this TP degree is ready."""
    report = json.loads(dilaserve("status", "--json", "--data-dir", stack.data_dir).stdout)
    return any(i["tp_degree"] == tp_degree and i["state"] == "ready" for i in report["instances"])


async def has_running_plan(bus: Bus) -> bool:
    return any(plan.state is PlanState.RUNNING for plan in await changes(bus))
