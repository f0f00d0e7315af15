"""Keys above their share fall below the highest level first, and wait first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.algorithms.common_level import BOOKED_KNOTS, level_at
from services.scheduler.algorithms.key_shares import allowed_shares, fair_share, key_levels, shares_before
from services.scheduler.events import RequestCancelled
from services.scheduler.policies.dilaserve import DiLaServePolicy
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state.active_keys import ActiveKeys
from services.scheduler.state.request_table import NOWHERE
from shared.arrays import Float64, Int64
from shared.errors import BadInput
from shared.settings import read_settings
from tests.builders import arrival
from tests.support.scripted_cell import jobs_in, make_cell, registered

LOWEST, HIGHEST = 0.5, 0.9
Keys = list[tuple[float, int, float]]
keys_of_requests = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.integers(1, 100), st.floats(0.1, 10.0)), min_size=1, max_size=6
)
parts_of_keys = st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 10.0)), min_size=1, max_size=6)


def levels(parts: list[float] | Float64, requests: list[int] | Int64, weights: list[float] | Float64) -> Float64:
    return key_levels(np.array(parts), np.array(requests), np.array(weights), LOWEST, HIGHEST)


@given(st.floats(0.0, 5.0), st.integers(1, 50), st.floats(0.1, 10.0), st.integers(1, 5))
def test_keys_of_equal_load_have_the_common_level(booked: float, requests: int, weight: float, keys: int) -> None:
    expected = level_at(booked, LOWEST, HIGHEST)
    assert levels([booked / keys] * keys, [requests] * keys, [weight] * keys) == pytest.approx([expected] * keys)


@given(keys_of_requests, st.floats(0.0, 5.0))
def test_more_load_of_a_key_never_raises_its_level(keys: Keys, more: float) -> None:
    parts, requests, weights = (np.array(column) for column in zip(*keys, strict=True))
    before = levels(parts, requests, weights)[0]
    parts[0] += more
    assert levels(parts, requests, weights)[0] <= before + 1e-9


@given(keys_of_requests, st.floats(0.0, 1.0))
def test_a_key_within_its_share_never_falls_below_the_common_level(keys: Keys, used: float) -> None:
    parts, requests, weights = (np.array(column) for column in zip(*keys, strict=True))
    parts[0] = used * BOOKED_KNOTS[0] * weights[0] / weights.sum()
    found, common = levels(parts, requests, weights)[0], level_at(float(parts.sum()), LOWEST, HIGHEST)
    assert found in (pytest.approx(HIGHEST), pytest.approx(common))


@pytest.mark.parametrize("burst", [0.6, 1.0, 10.0])
def test_a_burst_lowers_its_own_key_only(burst: float) -> None:
    assert levels([0.12, burst], [8, 50], [1, 1]).tolist() == [pytest.approx(HIGHEST), LOWEST]
    assert np.isfinite(allowed_shares(np.array([0.12, burst]), np.array([8, 50]), np.ones(2))).tolist() == [False, True]


def test_differences_by_chance_do_not_count() -> None:
    parts = np.array([0.2, 0.3])
    assert levels(parts, [4, 6], [1, 1]).tolist() == [pytest.approx(level_at(0.5, LOWEST, HIGHEST))] * 2
    assert np.isinf(allowed_shares(parts, np.array([4, 6]), np.ones(2))).all()
    light, heavy = levels(parts, [400, 600], [1, 1]).tolist()
    assert light > level_at(0.5, LOWEST, HIGHEST) > heavy


def test_a_key_of_more_weight_falls_later() -> None:
    heavier, other = levels([0.3, 0.3], [100, 100], [3, 1]).tolist()
    assert heavier > level_at(0.6, LOWEST, HIGHEST) > other


@given(parts_of_keys, st.floats(0.01, 1.0))
def test_the_cut_keys_and_the_light_ones_use_the_budget(keys: list[tuple[float, float]], budget: float) -> None:
    parts, weights = np.array(keys).T
    fair = fair_share(parts, weights, budget)
    assert np.minimum(parts, fair * weights).sum() == pytest.approx(min(budget, parts.sum()))


def test_requests_use_the_share_of_their_key_in_order() -> None:
    key, rank = np.array([0, 1, 0, 0, 1]), np.array([3.0, 1.0, 1.0, 2.0, 2.0])
    used, allowed = np.array([0.0, 0.3]), np.array([0.2, 0.2])
    before = shares_before(key, np.full(5, 0.1), rank, used, allowed)
    assert before == pytest.approx([1.0, 1.5, 0.0, 0.5, 2.0])
    allowed[0] = 0.1
    assert shares_before(key, np.full(5, 0.1), rank, used, allowed)[[2, 3, 0]] == pytest.approx([0.0, 1.0, 2.0])


@pytest.mark.parametrize("key", ["light", "burst"])
def test_a_late_backlog_does_not_delay_a_request_in_time(key: str) -> None:
    """The key with the backlog has its share, too."""
    cell = make_cell({}, policy="dilaserve")
    cell.send(*[arrival(f"late{i}", slo_s=10.0, key="burst") for i in range(40)])
    cell.now_s += 39.0
    assert not jobs_in(cell.send(arrival("light", slo_s=60.0, key=key)))
    [sent] = jobs_in(cell.send(registered("a-1", max_batch_requests=2)))
    assert {state.request_id for state in sent.jobs.states} == {"late0", "light"}


@pytest.mark.parametrize(("weights", "burst_falls"), [((), True), (("burst=1000",), False)])
def test_a_key_above_its_share_has_the_lower_thresholds(weights: tuple[str, ...], *, burst_falls: bool) -> None:
    cell = make_cell({"a-1": 1}, policy="dilaserve", key_weights=weights)
    cell.send(arrival("light", slo_s=300.0, key="light"))
    cell.send(*[arrival(f"burst{i}", slo_s=300.0, key="burst") for i in range(60)])
    level, row_of = cell.core.table.level, cell.core.table.row_of
    assert bool(level[row_of["light"]] > level[row_of["burst0"]]) is burst_falls


def test_levels_are_set_while_a_key_with_a_lower_index_has_no_request() -> None:
    cell = make_cell({"a-1": 1}, policy="dilaserve")
    cell.send(*[arrival(f"{key}1", slo_s=300.0, key=key) for key in ("first", "second", "third")])
    cell.send(RequestCancelled("first1"))
    cell.send(*[arrival(f"third{i}", slo_s=300.0, key="third") for i in range(2, 60)])
    level, row_of = cell.core.table.level, cell.core.table.row_of
    assert "first1" not in row_of
    assert level[row_of["second1"]] > level[row_of["third2"]]


def test_weights_are_read_from_the_environment() -> None:
    environ = {"DILASERVE_MODEL": "m", "DILASERVE_KEY_WEIGHTS": "3f2a91c0:x=2, a=b=0.5"}
    assert read_settings(SchedulerSettings, environ).weight_of_key == {"3f2a91c0:x": 2.0, "a=b": 0.5}


@pytest.mark.parametrize("entry", ["alice", "alice=", "=2", "alice=0", "alice=-1", "alice=inf", "alice=nan", "alice=x"])
def test_a_malformed_weight_is_refused(entry: str) -> None:
    with pytest.raises(BadInput, match="accepted is KEY=WEIGHT"):
        SchedulerSettings(model="m", key_weights=("bob=1", entry))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"))))
def test_the_index_of_a_key_is_its_own_while_it_has_requests(changes: list[tuple[bool, str]]) -> None:
    keys, active = ActiveKeys(), dict[str, list[int]]()
    for adds, name in changes:
        if adds:
            active.setdefault(name, []).append(keys.add(name))
        elif active.get(name):
            keys.remove(active[name].pop())
    for name, indices in active.items():
        assert {keys.names[index] for index in indices} <= {name}
        assert len(set(indices)) <= 1
    assert len(keys) == sum(bool(indices) for indices in active.values())


@pytest.mark.parametrize("requests", [1, 3])
def test_the_few_requests_of_a_light_key_come_before_a_backlog(requests: int) -> None:
    """However little the light key uses, so that the backlog is nearly the whole load."""
    allowed = allowed_shares(np.array([0.01 * requests, 12.0]), np.array([requests, 600]), np.ones(2))
    assert np.isfinite(allowed).tolist() == [False, True]


def test_keys_that_are_all_above_their_shares_wait_in_one_order() -> None:
    assert np.isinf(allowed_shares(np.array([6.0, 7.0, 0.0]), np.array([300, 310, 0]), np.ones(3))).all()


def test_the_use_of_a_running_request_counts_once() -> None:
    """It comes before the waiting ones of its key, whether or not it is among those that are placed."""
    cell = make_cell({"a-1": 1}, policy="dilaserve", caching=True)
    cell.send(registered("a-1", max_batch_requests=3))
    cell.send(
        *[arrival(f"r{i}", key="heavy", slo_s=30.0) for i in range(40)], arrival("light", key="light", slo_s=30.0)
    )
    policy, table = cell.core.policy, cell.core.table
    assert isinstance(policy, DiLaServePolicy)
    rows = table.ticket.nonzero()[0]
    runs = table.instance[rows] != NOWHERE
    waiting, rank = rows[~runs], np.arange(len(rows), dtype=np.float64)
    alone = policy.keys.shares_before(waiting, rank[: len(waiting)], table)
    together = policy.keys.shares_before(np.concatenate([rows[runs], waiting]), rank, table)
    assert alone.max() > 0
    assert together[np.count_nonzero(runs) :] == pytest.approx(alone)
