"""The default policy's thresholds: the common level, rescues, floors, and the edges."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.algorithms.common_level import highest_within, level_at, steps_at
from services.scheduler.policies.dilaserve import DiLaServePolicy
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.policies.policy import LOAD_CONTROL_INTERVAL_S
from services.scheduler.state.request_table import NOWHERE
from services.scheduler.state.step_pipeline import SENT_ACROSS, SENT_AHEAD
from shared.arrays import Float64, unpack_float32, unpack_int64
from tests.builders import arrival, scheduler_core
from tests.support.scripted_cell import FLAT_PROFILE, PROFILE, THRESHOLDS, ScriptedCell, jobs_in, make_cell, registered
from tests.support.scripted_worker import ScriptedWorker


def cell_of(*, caching: bool = True, **options: Any) -> ScriptedCell:
    return make_cell({"a-1": 1}, policy="dilaserve", caching=caching, **options)


def cell_with(*candidates: float) -> ScriptedCell:
    """With these candidate thresholds, ascending, and instance a-1."""
    core = scheduler_core(
        lambda estimates: DiLaServePolicy(candidates=np.array(candidates), estimates=estimates),
        thresholds=candidates,
        tokens_per_step=tuple(np.linspace(4, 1, len(candidates))),
    )
    cell = ScriptedCell(core, {"a-1": ScriptedWorker()})
    cell.send(registered("a-1"))
    return cell


def thresholds(cell: ScriptedCell, *requests: object) -> list[float]:
    [sent] = jobs_in(cell.send(*requests))  # type: ignore[arg-type]
    return [round(float(threshold), 6) for threshold in unpack_float32(sent.jobs.thresholds)]


def test_all_requests_share_one_level_between_the_candidates() -> None:
    """The paper's load control would give some requests 0.9 and others 0.5."""
    chosen = thresholds(cell_of(), *[arrival(f"r{i}", slo_s=165.0) for i in range(40)])
    assert len(set(chosen)) == 1
    assert 0.5 < chosen[0] < 0.9
    assert chosen[0] not in THRESHOLDS


def test_the_level_falls_with_the_load_to_the_lowest_candidate() -> None:
    levels = [thresholds(cell_of(), *[arrival(f"r{i}", slo_s=165.0) for i in range(n)])[0] for n in (4, 40, 80)]
    assert levels == sorted(levels, reverse=True)
    assert (levels[0], levels[-1]) == (0.9, 0.5)


@pytest.mark.parametrize(("exact", "requests"), [(False, 5), (True, 6)])
def test_an_arrival_waits_for_others_only_if_blocks_recompute(exact: bool, requests: int) -> None:
    """Iterations of one kind are the cheaper here. With an exact cache too few steps recompute to gather them."""
    cell = cell_of(exact=exact, per_step=2)
    cell.send(registered("a-1", profile=FLAT_PROFILE))
    first = cell.send(*[arrival(f"r{i}", slo_s=100.0) for i in range(5)])
    second = cell.answer(first)
    assert jobs_in(cell.send(arrival("last", slo_s=100.0))) == []
    [sent] = jobs_in(cell.answer(second))
    assert len(unpack_int64(sent.jobs.tickets)) == requests


def test_without_load_control_the_level_is_the_highest_candidate() -> None:
    requests = [arrival(f"r{i}", slo_s=165.0) for i in range(40)]
    assert thresholds(cell_of(load_control=False), *requests) == [0.9] * 40


def test_requests_of_guaranteed_priority_keep_the_highest_candidate() -> None:
    crowd = [arrival(f"r{i}", slo_s=165.0) for i in range(80)]
    chosen = thresholds(cell_of(guaranteed_priority=10), *crowd, arrival("vip", slo_s=1e5, priority=10))
    assert sorted(set(chosen)) == [0.5, 0.9]


def test_a_request_that_would_miss_its_deadline_takes_a_lower_threshold() -> None:
    """Alone, a cache step takes 0.033 s; 64 tokens take 16 to 64 steps."""
    chosen = [thresholds(cell_of(), arrival("r", slo_s=slo_s))[0] for slo_s in (20.0, 4.0, 2.0, 0.5)]
    assert chosen == sorted(chosen, reverse=True)
    assert (chosen[0], chosen[-1]) == (0.9, 0.5)
    assert 0.5 < chosen[1] < 0.9


@pytest.mark.parametrize("floor", [0.0, 0.62, 0.95, 1.0])
def test_a_quality_floor_holds_also_above_all_candidates(floor: float) -> None:
    chosen = thresholds(cell_of(), arrival("r", slo_s=1.0, min_threshold=floor))
    assert chosen == [pytest.approx(max(0.5, floor))]


@given(
    candidates=st.lists(st.integers(0, 1000), min_size=1, max_size=5, unique=True).map(
        lambda thousandths: tuple(i / 1000 for i in sorted(thousandths))
    ),
    slos_s=st.lists(st.floats(0.01, 1000), min_size=1, max_size=8),
)
def test_the_candidates_bound_every_threshold(candidates: tuple[float, ...], slos_s: list[float]) -> None:
    cell = cell_with(*candidates)
    requests = [arrival(f"r{i}", slo_s=slo_s) for i, slo_s in enumerate(slos_s)]
    for threshold in thresholds(cell, *requests):
        assert candidates[0] - 1e-6 <= threshold <= candidates[-1] + 1e-6


def test_a_candidate_of_three_decimals_is_used_as_it_is() -> None:
    assert thresholds(cell_with(0.855), arrival("r")) == [0.855]
    assert thresholds(cell_with(0.505, 0.955), arrival("r")) == [0.955]
    assert thresholds(cell_with(0.505, 0.955), arrival("urgent", slo_s=2.0)) == [0.505]


@pytest.mark.parametrize(("moves", "state"), [("never", SENT_ACROSS), ("room", SENT_AHEAD)])
def test_a_request_that_never_moves_crosses_blocks_while_another_waits(moves: str, state: int) -> None:
    cell = cell_of(moves=MigrationPolicy(moves), lookahead=1)
    cell.send(registered("a-1", profile=PROFILE, max_batch_requests=1))
    cell.send(arrival("runs", output_tokens=64, slo_s=1000.0), arrival("waits", output_tokens=64, slo_s=2000.0))
    table = cell.core.table
    assert table.instance[table.row_of["waits"]] == NOWHERE
    assert table.pipeline.state[table.row_of["runs"]] == state


def test_without_an_instance_requests_wait_at_the_lowest_level() -> None:
    cell = make_cell({}, policy="dilaserve", caching=True)
    assert jobs_in(cell.send(arrival("r", slo_s=5.0))) == []
    assert cell.core.table.level[cell.core.table.row_of["r"]] == 0.5
    cell.workers["a-1"] = ScriptedWorker("a-1", 4)
    cell.serve(cell.send(registered("a-1", profile=PROFILE)))
    assert len(cell.finished) == 1


def test_a_late_request_waits_behind_those_in_time_but_not_behind_a_far_slo() -> None:
    """It is planned for the median SLO from now, 100 s, and served as if due four of its planned SLOs later."""
    cell = cell_of(per_step=32)
    cell.send(registered("a-1", profile=FLAT_PROFILE, max_batch_requests=1))
    cell.now_s += 10.0
    slos_s = {"late": 5.0, "long": 1000.0, "patient": 100.0, "in time": 20.0}
    cell.serve(cell.send(*[arrival(name, slo_s=slo_s) for name, slo_s in slos_s.items()]))
    names = [finish.arrived.request.request_id for finish in cell.finished]
    assert names == ["in time", "patient", "late", "long"]


def test_a_request_is_late_only_after_its_deadline() -> None:
    cell = cell_of(per_step=32)
    cell.send(registered("a-1", profile=FLAT_PROFILE, max_batch_requests=1))
    cell.serve(cell.send(arrival("second", slo_s=2.0), arrival("first", slo_s=0.9)))
    assert [finish.arrived.request.request_id for finish in cell.finished] == ["first", "second"]


@pytest.mark.parametrize(("crowd_slo_s", "is_tight"), [(1e5, True), (20.0, False)])
def test_batches_are_cut_for_an_urgent_request_only_while_the_cluster_has_room(
    crowd_slo_s: float, *, is_tight: bool
) -> None:
    """A batch of all 21 requests takes 0.67 s, and the urgent one needs 16 steps in 4 s."""
    cell = cell_of()
    crowd = [arrival(f"r{i}", slo_s=crowd_slo_s) for i in range(20)]
    cell.send(*crowd, arrival("urgent", slo_s=4.0))
    cell.now_s += LOAD_CONTROL_INTERVAL_S
    cell.send()
    assert cell.core.fleet.tight.any() == is_tight


@pytest.mark.parametrize("has_state", [True, False])
def test_a_request_that_moves_within_a_block_recomputes_there(*, has_state: bool) -> None:
    cell = cell_of(per_step=2)
    cell.answer(cell.send(arrival("r")))
    row = np.array([cell.core.table.row_of["r"]])
    if not has_state:
        cell.core.table.state_instance[row] = NOWHERE
    _, recompute_left = cell.core.estimates.remaining(row)
    assert recompute_left[0].tolist() == [1.0 if has_state else 2.0] * len(THRESHOLDS)


SHARES = st.floats(0, 10)
HUNDREDTHS = [i / 100 for i in range(101)]
CANDIDATES = st.lists(st.sampled_from(HUNDREDTHS), min_size=1, max_size=6, unique=True).map(sorted).map(np.array)
STEPS = st.floats(1, 5000)


@st.composite
def estimates(draw: st.DrawFn) -> tuple[Float64, Float64]:
    """Candidates, and the steps left of one request at each."""
    candidates = draw(CANDIDATES)
    steps = draw(st.lists(STEPS, min_size=len(candidates), max_size=len(candidates)))
    return candidates, np.array([steps])


def highest(candidates: Float64, steps: Float64, max_steps: float) -> float:
    return float(highest_within(steps, candidates, np.array([max_steps]))[0])


def steps_of(candidates: Float64, steps: Float64, threshold: float) -> float:
    return float(steps_at(steps, candidates, np.array([threshold]))[0])


@given(share=SHARES, more=SHARES)
def test_the_level_falls_as_the_booked_share_rises(share: float, more: float) -> None:
    assert 0.5 <= level_at(share + more, 0.5, 0.9) <= level_at(share, 0.5, 0.9) <= 0.9


@given(estimates=estimates(), max_steps=st.floats(-10, 6000), more=st.floats(0, 6000))
def test_more_steps_never_lower_the_highest_threshold_within_them(
    estimates: tuple[Float64, Float64], max_steps: float, more: float
) -> None:
    candidates, steps = estimates
    few, many = highest(candidates, steps, max_steps), highest(candidates, steps, max_steps + more)
    assert candidates[0] <= few <= many + 1e-12
    assert many <= candidates[-1] + 1e-12


@given(estimates=estimates(), max_steps=st.floats(-10, 6000))
def test_the_steps_at_the_highest_threshold_fit(estimates: tuple[Float64, Float64], max_steps: float) -> None:
    """Where none fits, it is the lowest candidate."""
    candidates, steps = estimates
    threshold = highest(candidates, steps, max_steps)
    if steps[0, 0] <= max_steps:
        assert steps_of(candidates, steps, threshold) <= max_steps + 1e-6 * abs(max_steps) + 1e-6
    else:
        assert threshold == candidates[0]


@given(estimates=estimates(), threshold=st.floats(-1, 2) | st.sampled_from(HUNDREDTHS))
def test_the_steps_are_interpolated_between_the_candidates_and_constant_beyond(
    estimates: tuple[Float64, Float64], threshold: float
) -> None:
    candidates, steps = estimates
    assert steps_of(candidates, steps, threshold) == pytest.approx(np.interp(threshold, candidates, steps[0]))


def test_the_highest_threshold_may_lie_between_two_candidates() -> None:
    assert highest(np.array([0.5, 0.7, 0.9]), np.array([[10.0, 20.0, 40.0]]), 30) == pytest.approx(0.8)
