"""Both stages of the planner, with the real solver, against enumeration."""

from collections import Counter
from collections.abc import Sequence

import pytest

from services.reconfigurator.planning.plan import Capacity, Placement, PlanStatus, check_placements
from services.reconfigurator.planning.solver import SolverStatus
from services.reconfigurator.planning.stage1_capacity import find_capacity
from services.reconfigurator.planning.stage2_assignment import GpuAssignment, plan_transition
from shared.errors import BadInput
from tests.support.small_plans import enumerate_stage1, enumerate_stage2, small_input, small_transition


def seeds(few: range) -> pytest.MarkDecorator:
    """The seeds of each test, and many more of a slow one."""
    slow = pytest.param(range(1000, 1200), marks=[pytest.mark.slow, pytest.mark.timeout(600)])
    return pytest.mark.parametrize("seeds", [few, slow], ids=str)


@seeds(range(30))
def test_stage_1_matches_enumeration(seeds: range) -> None:
    """With and without a cache in turn."""
    found = [stage_1_agrees(seed, cached=bool(seed % 2)) for seed in seeds]
    assert 1 <= found.count(SolverStatus.INFEASIBLE) <= len(seeds) / 2, "instances of both kinds are among them"


@pytest.mark.parametrize("seed", range(0, 80, 16))
def test_a_growing_workload_has_the_same_quality_and_at_least_the_room(seed: int) -> None:
    p = small_input(seed, cached=bool(seed % 32))
    steady, growing = (find_capacity(p, 60, growing=growing) for growing in (False, True))
    if isinstance(steady, SolverStatus) or isinstance(growing, SolverStatus):
        assert steady is growing is SolverStatus.INFEASIBLE
        return
    assert growing.mean_threshold == pytest.approx(steady.mean_threshold, rel=1e-5)
    assert growing.sustains >= steady.sustains * (1 - 1e-5)
    assert growing.slack_s <= steady.slack_s + 1e-5


@seeds(range(60))
def test_stage_2_matches_enumeration(seeds: range) -> None:
    found = [stage_2_agrees(seed) for seed in seeds]
    assert 1 <= found.count(None) <= len(seeds) / 2, "instances of both kinds are among them"


def stage_1_agrees(seed: int, *, cached: bool) -> Capacity | SolverStatus:
    p = small_input(seed, cached=cached)
    found, expected = find_capacity(p, 60), enumerate_stage1(p)
    if expected is None:
        assert found is SolverStatus.INFEASIBLE, f"seed {seed}"
        return found
    assert isinstance(found, Capacity), f"seed {seed}: {found}, expected {expected}"
    assert found.status is PlanStatus.OPTIMAL, f"seed {seed}"
    assert (found.mean_threshold, found.slack_s) == pytest.approx(expected, rel=1e-5, abs=1e-5), f"seed {seed}"
    return found


def stage_2_agrees(seed: int) -> GpuAssignment | None:
    current, required, nodes = small_transition(seed)
    expected = enumerate_stage2(current, required, nodes)
    if expected is None:
        with pytest.raises(BadInput, match="do not fit"):
            plan_transition(current, required, nodes, 60)
        return None
    transition = plan_transition(current, required, nodes, 60)
    assert (transition.preserved, transition.gap) == (expected, 0), f"seed {seed}"
    assert Counter(i.tp for i in transition.instances) == Counter(required), f"seed {seed}"
    check_placements(transition.instances, nodes)
    kept = [place(i) for i in transition.instances if i.preserved]
    assert len(kept) == expected, f"seed {seed}"
    assert {*kept} <= {place(c) for c in current}, f"seed {seed}: preserved instances keep their very GPUs"
    walk(current, transition)
    return transition


def walk(current: Sequence[Placement], transition: GpuAssignment) -> None:
    """Take the steps: each launch finds its GPUs free, each stop before it frees one of them, the end is the plan."""
    running = dict(enumerate(place(c) for c in current))
    started: list[tuple[int, frozenset[int]]] = []
    for step in transition.steps:
        stopped = [running.pop(i) for i in step.stop]
        if step.start is not None:
            node, gpus = place(step.start)
            assert all(n == node and g & gpus for n, g in stopped), "a stop is not needed yet"
            assert not any(n == node and g & gpus for n, g in [*running.values(), *started]), "a GPU is not free"
            started.append((node, gpus))
    assert {*running.values(), *started} == {place(i) for i in transition.instances}


def place(placement: Placement) -> tuple[int, frozenset[int]]:
    return placement.node, frozenset(placement.gpus)
