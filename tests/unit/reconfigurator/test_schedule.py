"""When the next decision is due, and which instances count as lost."""

import numpy as np
import pytest

from services.reconfigurator.schedule import LossWatch, PlanSchedule, PlanTrigger, outgrown
from shared.messages.launch import InstanceSpec
from tests.support.present import present

INTERVAL_S, WINDOW_S, RECENT_S = 300.0, 300.0, 60.0
WHOLE = PlanTrigger(WINDOW_S)


def decided_schedule(rps: float) -> PlanSchedule:
    """A schedule that has decided at 300 s for `rps` requests per second, and planned for a tenth more."""
    schedule = PlanSchedule(INTERVAL_S, WINDOW_S, rps_buffer=0.1, now_s=0.0)
    assert schedule.due(300.0, recent=0) == WHOLE
    schedule.decided(WHOLE, rps)
    return schedule


def test_the_first_decision_waits_for_a_window_under_any_load() -> None:
    schedule = PlanSchedule(INTERVAL_S, WINDOW_S, rps_buffer=0.1, now_s=0.0)
    assert schedule.due(240.0, recent=10_000) is None
    assert schedule.due(300.0, recent=10_000) == WHOLE


def test_a_steady_load_is_decided_on_every_interval() -> None:
    schedule = decided_schedule(rps=2.0)
    assert [schedule.due(now_s, recent=132) for now_s in (360.0, 420.0, 599.0)] == [None] * 3
    assert schedule.due(600.0, recent=132) == WHOLE


def test_growth_triggers_an_early_decision_that_plans_for_more_growth() -> None:
    schedule = decided_schedule(rps=2.0)
    early = present(schedule.due(360.0, recent=600))
    assert early.span_s == RECENT_S
    assert early.rise == pytest.approx(0.8)
    schedule.decided(early, rps=10.0)
    assert schedule.due(420.0, recent=1080) is None, "10 RPS, a tenth, and 8 of growth are planned for"
    for now_s in (480.0, 540.0):  # the first decision fails
        assert schedule.due(now_s, recent=1400) is not None


def test_after_an_early_decision_the_next_sees_only_later_requests() -> None:
    schedule = decided_schedule(rps=2.0)
    early = present(schedule.due(360.0, recent=600))
    schedule.decided(early, rps=10.0)
    assert schedule.due(600.0, recent=600) is None
    assert schedule.due(660.0, recent=600) == WHOLE


def test_a_loss_is_decided_on_at_once_over_the_last_window() -> None:
    schedule = PlanSchedule(INTERVAL_S, WINDOW_S, rps_buffer=0.1, now_s=0.0)
    first = schedule.due(40.0, recent=0, lost=["worker-a-0"])
    assert first == PlanTrigger(40.0, lost=("worker-a-0",))
    schedule.decided(first, rps=2.0)
    assert schedule.due(100.0, recent=132) is None
    later = schedule.due(320.0, recent=132, lost=["worker-a-0"])
    assert later == PlanTrigger(WINDOW_S, lost=("worker-a-0",))
    schedule.decided(later, rps=2.0)
    assert schedule.due(619.0, recent=132) is None
    assert schedule.due(620.0, recent=132) == WHOLE


def test_a_regular_decision_that_fails_stays_due() -> None:
    schedule = decided_schedule(rps=2.0)
    assert schedule.due(600.0, recent=120) == WHOLE
    assert schedule.next_check_in_s(602.0) == 0.0
    assert schedule.due(602.0, recent=120) == WHOLE
    schedule.decided(WHOLE, rps=2.0)
    assert schedule.due(604.0, recent=120) is None
    assert schedule.due(902.0, recent=120) == WHOLE


def test_the_next_check_is_no_later_than_the_end_of_the_interval() -> None:
    schedule = decided_schedule(rps=2.0)
    assert schedule.next_check_in_s(300.0) == RECENT_S
    assert schedule.next_check_in_s(590.0) == 10.0
    assert schedule.next_check_in_s(700.0) == 0.0


@pytest.mark.parametrize("rps", [0.003, 0.03, 0.1, 0.3, 1.0, 20.0])
def test_chance_alone_hardly_ever_triggers_an_early_decision(rps: float) -> None:
    minutes, days = 1440, 10
    early = 0
    for seed in range(days):
        arrivals = np.random.default_rng(seed).poisson(60 * rps, minutes)
        schedule = PlanSchedule(INTERVAL_S, WINDOW_S, rps_buffer=0.1, now_s=0.0)
        for minute in range(1, minutes):
            trigger = schedule.due(60.0 * minute, int(arrivals[minute - 1]))
            if trigger is not None:
                span = round(trigger.span_s / 60)
                schedule.decided(trigger, arrivals[minute - span : minute].sum() / trigger.span_s)
                early += trigger.rise > 0
    assert early <= 5, f"{early} in {days} days"


def test_fewer_expected_arrivals_need_a_larger_relative_excess() -> None:
    assert not outgrown(4, expected=0.0)
    assert outgrown(5, expected=0.0)
    assert not outgrown(115, expected=80.0)
    assert outgrown(1200, expected=1050.0)


def test_an_early_decision_states_its_trigger() -> None:
    assert WHOLE.explain("neither") == "neither"
    reason = PlanTrigger(RECENT_S, rise=0.8).explain("neither")
    assert reason.startswith("early, as the last 60 s outgrew the plan")
    assert reason.endswith("80% more to come: neither")
    assert PlanTrigger(WINDOW_S, lost=("a", "b")).explain("neither") == "at once, after the loss of a, b: neither"


A, B = (InstanceSpec(node=node, gpus=(0,)) for node in "ab")


def test_an_instance_that_served_and_ended_without_a_plan_is_lost_until_a_decision() -> None:
    watch = LossWatch()
    assert not watch.update(running=[A, B], serving=[A, B], stopped=[])
    assert watch.update(running=[A], serving=[A], stopped=[])
    assert watch.lost == {B}
    assert watch.update(running=[A], serving=[A], stopped=[])
    watch.forget([B])
    assert not watch.update(running=[A], serving=[A], stopped=[])


def test_an_instance_that_a_plan_stops_or_that_never_served_is_not_lost() -> None:
    for serving, stopped in (([A, B], [B]), ([A], [])):
        watch = LossWatch()
        watch.update(running=[A, B], serving=serving, stopped=[])
        assert not watch.update(running=[A], serving=[A], stopped=stopped)


def test_an_instance_that_is_back_can_be_lost_again() -> None:
    watch = LossWatch()
    watch.update(running=[A], serving=[A], stopped=[])
    watch.update(running=[], serving=[], stopped=[])
    watch.forget([A])
    watch.update(running=[A], serving=[A], stopped=[])
    assert watch.update(running=[], serving=[], stopped=[])


def test_a_loss_that_the_decision_did_not_consider_stays() -> None:
    watch = LossWatch()
    watch.update(running=[A, B], serving=[A, B], stopped=[])
    watch.update(running=[A], serving=[A], stopped=[])
    considered = watch.lost
    watch.update(running=[], serving=[], stopped=[])
    watch.forget(considered)
    assert watch.lost == {A}
