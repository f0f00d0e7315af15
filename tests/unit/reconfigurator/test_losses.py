"""Which instances count as lost."""

from services.reconfigurator.losses import LossWatch
from shared.messages.launch import InstanceSpec

A, B = (InstanceSpec(node=node, gpus=(0,)) for node in "ab")


def test_an_instance_that_served_and_ended_without_a_plan_is_lost_until_a_decision() -> None:
    watch = LossWatch()
    assert not watch.update(running=[A, B], serving=[A, B], stopped=[])
    assert watch.update(running=[A], serving=[A], stopped=[])
    assert watch.lost == {B}
    assert watch.update(running=[A], serving=[A], stopped=[])
    watch.forget([B])
    assert not watch.update(running=[A], serving=[A], stopped=[])


def test_an_instance_that_a_plan_stops_is_not_lost() -> None:
    watch = LossWatch()
    watch.update(running=[A, B], serving=[A, B], stopped=[])
    assert not watch.update(running=[A], serving=[A], stopped=[B])


def test_an_instance_that_never_served_is_not_lost() -> None:
    watch = LossWatch()
    watch.update(running=[A, B], serving=[A], stopped=[])
    assert not watch.update(running=[A], serving=[A], stopped=[])


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
