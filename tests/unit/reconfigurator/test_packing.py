"""Fillings of a node, and the order of launches."""

from services.reconfigurator.planning.packing import fillings
from services.reconfigurator.planning.plan import Placement, PlanStep
from services.reconfigurator.planning.stage2_assignment import order_steps


def test_a_filling_leaves_no_room_for_another_instance() -> None:
    assert sorted(fillings(4, [1, 2, 4])) == [(0, 0, 1), (0, 2, 0), (2, 1, 0), (4, 0, 0)]
    assert sorted(fillings(4, [2, 3])) == [(0, 1), (2, 0)]
    assert list(fillings(1, [2, 4])) == [(0, 0)]


def at(node: int, *gpus: int) -> Placement:
    return Placement(node=node, gpus=list(gpus), tp=len(gpus))


def test_packing_uses_idle_gpus_first_then_stops_the_fewest() -> None:
    current = [at(0, 0, 1, 2, 3), at(1, 0), at(1, 1)]
    starts = [at(0, 0, 1), at(0, 2, 3), at(1, 0, 1), at(2, 0)]
    assert order_steps(current, set(), starts) == [
        PlanStep(stop=[], start=at(2, 0)),
        PlanStep(stop=[1, 2], start=at(1, 0, 1)),
        PlanStep(stop=[0], start=at(0, 0, 1)),
        PlanStep(stop=[], start=at(0, 2, 3)),
    ]


def test_preserved_instances_keep_running_and_unneeded_ones_stop_last() -> None:
    assert order_steps([at(0, 0), at(0, 1)], {0}, [at(0, 2)]) == [PlanStep(stop=[], start=at(0, 2)), PlanStep(stop=[1])]
    assert order_steps([at(0, 0)], {0}, []) == []
