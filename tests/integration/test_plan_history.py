"""Decisions on the bus."""

from shared.bus.client import Bus
from shared.bus.plan_history import read_plans
from shared.messages.plans import PlanRecord, PlanState


def record(number: int, state: PlanState = PlanState.STAYED) -> PlanRecord:
    return PlanRecord(plan_id=f"plan-{number}", decided_s=float(number), state=state, reason="a test")


async def test_plans_are_listed_newest_first_in_their_last_state(bus: Bus) -> None:
    assert await read_plans(bus, 10) == []
    for number in range(4):
        await bus.store(bus.subjects.plans(f"plan-{number}"), record(number, PlanState.RUNNING))
    for number in (2, 0):
        await bus.store(bus.subjects.plans(f"plan-{number}"), record(number, PlanState.DONE))
    assert [(plan.plan_id, plan.state) for plan in await read_plans(bus, 10)] == [
        ("plan-3", PlanState.RUNNING),
        ("plan-2", PlanState.DONE),
        ("plan-1", PlanState.RUNNING),
        ("plan-0", PlanState.DONE),
    ]
    assert len(await read_plans(bus, 2)) == 2


async def test_an_unreadable_plan_hides_no_other(bus: Bus) -> None:
    await bus.store(bus.subjects.plans("plan-0"), record(0))
    await bus.js.publish(bus.subjects.plans("plan-1"), b"of a version to come")
    assert [plan.plan_id for plan in await read_plans(bus, 10)] == ["plan-0"]
