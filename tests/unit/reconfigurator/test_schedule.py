"""When the next decision is due."""

import numpy as np
import pytest

from services.reconfigurator.schedule import PlanSchedule, PlanTrigger, outgrown

INTERVAL_S, WINDOW_S, LOOK_S = 300.0, 300.0, 60.0
WHOLE = PlanTrigger(WINDOW_S)


def agenda(rps: float) -> PlanSchedule:
    """At 300 s it has decided for so many requests a second, and planned for a tenth more."""
    made = PlanSchedule(INTERVAL_S, WINDOW_S, rps_buffer=0.1, now_s=0.0)
    assert made.due(300.0, recent=0) == WHOLE
    made.decided(WHOLE, rps)
    return made


def test_the_first_decision_waits_for_a_window_whatever_arrives() -> None:
    made = PlanSchedule(INTERVAL_S, WINDOW_S, rps_buffer=0.1, now_s=0.0)
    assert made.due(240.0, recent=10_000) is None
    assert made.due(300.0, recent=10_000) == WHOLE


def test_a_steady_load_is_decided_on_every_interval() -> None:
    made = agenda(rps=2.0)
    assert [made.due(now_s, recent=132) for now_s in (360.0, 420.0, 599.0)] == [None] * 3
    assert made.due(600.0, recent=132) == WHOLE


def test_growth_is_decided_on_early_and_planned_for_once_more() -> None:
    made = agenda(rps=2.0)
    early = made.due(360.0, recent=600)
    assert early is not None
    assert early.span_s == LOOK_S
    assert early.rise == pytest.approx(0.8)
    made.decided(early, rps=10.0)
    assert made.due(420.0, recent=1080) is None, "10 RPS, a tenth, and 8 of growth are planned for"
    assert made.due(480.0, recent=1400) is not None


def test_after_an_early_decision_the_next_sees_only_later_requests() -> None:
    made = agenda(rps=2.0)
    early = made.due(360.0, recent=600)
    assert early is not None
    made.decided(early, rps=10.0)
    assert made.due(600.0, recent=600) is None
    assert made.due(660.0, recent=600) == WHOLE


def test_a_decision_that_could_not_be_made_is_tried_again_if_it_was_early() -> None:
    made = agenda(rps=2.0)
    assert made.due(360.0, recent=600) is not None
    assert made.due(420.0, recent=600) is not None


def test_the_next_check_is_no_later_than_the_end_of_the_interval() -> None:
    made = agenda(rps=2.0)
    assert made.next_check_in_s(300.0) == LOOK_S
    assert made.next_check_in_s(590.0) == 10.0
    assert made.next_check_in_s(700.0) == 0.0


@pytest.mark.parametrize("rps", [0.003, 0.03, 0.1, 0.3, 1.0, 20.0])
def test_chance_alone_hardly_ever_makes_a_decision_early(rps: float) -> None:
    minutes, days = 1440, 10
    early = 0
    for seed in range(days):
        arrivals = np.random.default_rng(seed).poisson(60 * rps, minutes)
        made = PlanSchedule(INTERVAL_S, WINDOW_S, rps_buffer=0.1, now_s=0.0)
        for minute in range(1, minutes):
            trigger = made.due(60.0 * minute, int(arrivals[minute - 1]))
            if trigger is not None:
                span = round(trigger.span_s / 60)
                made.decided(trigger, arrivals[minute - span : minute].sum() / trigger.span_s)
                early += trigger.rise > 0
    assert early <= 5, f"{early} in {days} days"


def test_the_fewer_are_expected_the_more_of_them_may_be_chance() -> None:
    assert not outgrown(4, expected=0.0)
    assert outgrown(5, expected=0.0)
    assert not outgrown(115, expected=80.0)
    assert outgrown(1200, expected=1050.0)


def test_an_early_decision_states_its_trigger() -> None:
    assert WHOLE.explain("neither") == "neither"
    told = PlanTrigger(LOOK_S, rise=0.8).explain("neither")
    assert told.startswith("early, as the last 60 s outgrew the plan")
    assert told.endswith("80% more to come: neither")
