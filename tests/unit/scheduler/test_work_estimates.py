"""Work is priced by the profile, and finished iterations correct the price and show the pace."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.algorithms.refusal import MIN_ENDED, MIN_SHARE, ComputingShare
from services.scheduler.algorithms.work_estimates import BatchLatency, booked_shares, pace_s
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.observations import CONFIRMED_AFTER, MEASURE_EVERY, observe_iterations
from services.scheduler.state.request_table import RequestTable
from shared.arrays import Int64
from shared.messages.instances import InstanceState
from shared.messages.steps import CACHE
from tests.builders import arrival
from tests.support.scripted_cell import FLAT_PROFILE, registered

NOW_S = 1000.0


def cluster(
    *tp_degrees: int, requests: int = 4, slo_s: float = 10.0, caching: bool = True, **fields: int
) -> tuple[RequestTable, Fleet]:
    """Requests on instance 0; the profile is that of `scripted_cell`: (1 ms + 1 ms per token) / TP degree."""
    table, fleet = RequestTable(candidates=1, caching=caching), Fleet()
    for i, tp_degree in enumerate(tp_degrees):
        fleet.update(registered(f"i-{i}", tp_degree=tp_degree).instance, 0.0)
    for i in range(requests):
        row = table.add(arrival(f"r{i}", slo_s=slo_s, **fields))
        table.instance[row] = table.state_instance[row] = 0
        fleet.add_load(0, int(table.tokens[row]), requests=1)
    return table, fleet


def booked(table: RequestTable, fleet: Fleet, cache_steps: float, recompute_steps: float = 0.0) -> float:
    rows = table.ticket.nonzero()[0]
    each = np.ones(len(rows))
    return float(booked_shares(rows, cache_steps * each, recompute_steps * each, table, fleet).sum())


def iterate(table: RequestTable, fleet: Fleet, latency_s: float, times: int, *, rows: Int64 | None = None) -> None:
    """Cache steps of `rows`, or all requests, one iteration after the other."""
    rows = table.ticket.nonzero()[0] if rows is None else rows
    n = len(rows)
    for _ in range(times):
        now_s = max(NOW_S, float(table.last_result_s[rows].max())) + latency_s
        fleet.sent_batch[0] += 1
        table.pipeline.send(rows, np.full(n, 0.9), np.full(n, CACHE, np.int32), now_s, fleet.sent_batch[[0] * n])
        observe_iterations(table, fleet, rows, np.full(n, latency_s), np.zeros(n, np.int32), now_s)
        table.pipeline.complete(rows, np.zeros(n, np.bool_))


@given(steps=st.floats(1, 500), more=st.floats(0, 500), slo_s=st.floats(100, 1000))
def test_more_steps_or_less_time_book_more(steps: float, more: float, slo_s: float) -> None:
    some, urgent = cluster(1, slo_s=slo_s), cluster(1, slo_s=slo_s / 2)
    assert booked(*some, steps) <= booked(*some, steps + more)
    assert booked(*some, steps, recompute_steps=1) <= booked(*some, steps, recompute_steps=1 + more)
    assert booked(*urgent, steps) == pytest.approx(2 * booked(*some, steps))


def test_instances_divide_the_work_by_their_speed() -> None:
    alone, beside_equal, beside_double = (booked(*cluster(*degrees), 50) for degrees in ([1], [1, 1], [1, 2]))
    assert beside_equal == pytest.approx(alone / 2)
    assert beside_double == pytest.approx(alone / 3)


@pytest.mark.parametrize("slower", [1.0, 100.0])  # 100: a step takes longer than a second
def test_an_slo_below_the_time_of_the_steps_books_as_that_time_does(slower: float) -> None:
    table, fleet = cluster(1, requests=1, slo_s=1e-3)
    fleet.correction[0] = slower
    assert booked(table, fleet, 50) == pytest.approx(1.0, rel=0.1)


def test_closed_instances_do_no_work_and_without_an_open_one_all_is_booked() -> None:
    table, fleet = cluster(1, 1)
    both = booked(table, fleet, 50)
    fleet.update(registered("i-1", state=InstanceState.DRAINING).instance, 0.0)
    assert booked(table, fleet, 50) == pytest.approx(2 * both)
    fleet.update(registered("i-0", state=InstanceState.DRAINING).instance, 0.0)
    assert booked(table, fleet, 50) == np.inf


def test_longer_blocks_and_sequences_cost_more() -> None:
    short, long = cluster(1), cluster(1, block_length=64)
    assert booked(*long, 50) > 1.5 * booked(*short, 50)
    paces = [pace_s(np.array([0]), *each)[0] for each in (short, long)]
    assert paces[1] == pytest.approx(2 * paces[0], rel=0.1)
    short, long = cluster(1), cluster(1, prompt_tokens=400)
    assert booked(*long, 0, recompute_steps=50) > 1.5 * booked(*short, 0, recompute_steps=50)


def test_the_keys_of_long_sequences_cost_more_where_they_were_measured() -> None:
    """A cache step of 32 tokens takes 32 ms with 256 keys, and 10 us more for each further key."""
    rows = [f"1,{tokens},recompute,{tokens},{tokens}" for tokens in (32, 1024)]
    rows += [f"1,{n},cache,{n + (deep - 8 * n) / 100},{deep}" for n in (32, 256, 1024) for deep in (8 * n, 32 * n)]
    profile = "\n".join(["tp,batch_tokens,step_kind,latency_ms,context_tokens", *rows, ""])
    shares = []
    for prompt_tokens in (100, 1000, 2000):
        table, fleet = cluster(1, prompt_tokens=prompt_tokens)
        fleet.update(registered("i-0", profile=profile).instance, 0.0)
        shares.append(booked(table, fleet, 50))
    keyless, *deep = shares
    added_s = [4 * 50 * (keys - 256) * 10e-6 for keys in (1000 + 64, 2000 + 64)]  # of four requests
    assert [share - keyless for share in deep] == pytest.approx([s / 10.0 for s in added_s], rel=0.15)


def test_an_iteration_of_more_requests_takes_longer() -> None:
    _, fleet = cluster(1)
    latency = BatchLatency(fleet, tokens=128, block_length=32, recompute_share=0.1)
    seconds = latency.seconds(np.zeros(9, np.int64), np.arange(9))
    assert (np.diff(seconds) > 0).all()
    cache_only = BatchLatency(fleet, tokens=128, block_length=32, recompute_share=0.0)
    [eight] = cache_only.seconds(np.array([0]), np.array([8]))
    assert eight == pytest.approx(8 * 0.032, rel=0.1)


def test_without_a_cache_steps_share_the_base_of_recompute_iterations() -> None:
    """Iterations of both kinds cost the same, so a step books as much as a cache step, and a batch takes as long."""
    (cached, fleet), (uncached, _) = cluster(1), cluster(1, caching=False)
    fleet.update(registered("i-0", profile=FLAT_PROFILE).instance, 0.0)
    assert booked(uncached, fleet, 0, recompute_steps=50) == pytest.approx(booked(cached, fleet, 50), rel=0.2)
    latency = BatchLatency(fleet, tokens=128, block_length=32, recompute_share=1.0)
    assert latency.seconds(np.array([0]), np.array([4]))[0] == pytest.approx(0.0205, rel=0.01)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_wrong_profile_is_corrected(factor: float) -> None:
    """Four cache steps of 32 tokens take 0.129 s by the profile. With it, the booked share is as wrong as before."""
    table, fleet = cluster(1)
    before = booked(table, fleet, 50)
    iterate(table, fleet, factor * 0.129, 4000)
    assert fleet.correction[0] == pytest.approx(factor, rel=0.02)
    assert booked(table, fleet, 50) == pytest.approx(factor * before, rel=0.02)
    latency = BatchLatency(fleet, tokens=128, block_length=32, recompute_share=0.0)
    assert latency.seconds(np.array([0]), np.array([4]))[0] == pytest.approx(factor * 0.129, rel=0.1)


def test_all_of_the_first_iterations_correct_the_costs_and_then_some() -> None:
    table, fleet = cluster(1)
    for iterations, measured in ((CONFIRMED_AFTER, CONFIRMED_AFTER), (2 * MEASURE_EVERY, CONFIRMED_AFTER + 2)):
        iterate(table, fleet, 0.129, iterations)
        assert fleet.observed[0] == measured


def test_the_pace_is_the_profiles_until_it_is_observed() -> None:
    table, fleet = cluster(1)
    [by_profile] = pace_s(np.array([0]), table, fleet)
    assert by_profile == pytest.approx(4 * 0.032, rel=0.1)
    iterate(table, fleet, 0.5, 2)
    assert pace_s(np.array([0]), table, fleet)[0] == pytest.approx(0.5)


def test_the_pace_is_forgotten_when_the_last_request_leaves() -> None:
    """A later request that is alone must not be planned at the pace of a burst."""
    table, fleet = cluster(1)
    iterate(table, fleet, 0.5, 2)
    tokens = table.tokens[table.ticket.nonzero()[0]].tolist()
    for left in tokens[1:]:
        fleet.add_load(0, -left, requests=-1)
    assert fleet.pace_s[0] == pytest.approx(0.5)
    fleet.add_load(0, -tokens[0], requests=-1)
    assert fleet.pace_s[0] == 0.0


def test_the_pace_follows_a_change_and_counts_iterations_that_a_request_sits_out() -> None:
    table, fleet = cluster(1)
    iterate(table, fleet, 0.5, 2)
    iterate(table, fleet, 0.2, 300)
    assert fleet.pace_s[0] == pytest.approx(0.2, rel=0.05)
    first, second = table.ticket.nonzero()[0][:2]
    for _ in range(150):
        iterate(table, fleet, 0.2, 1, rows=np.array([first, second]))
        iterate(table, fleet, 0.2, 1, rows=np.array([first]))
    assert 0.22 < fleet.pace_s[0] < 0.38


def test_an_iteration_counts_whole_if_some_steps_are_of_an_earlier_batch() -> None:
    """The instance runs a late step job with its next batch."""
    table, fleet = cluster(1)
    rows = table.ticket.nonzero()[0]
    for batches in ([3, 3, 3, 4], [8, 7, 7, 7]):
        table.pipeline.send(rows, np.full(4, 0.9), np.full(4, CACHE, np.int32), NOW_S, np.array(batches))
        observe_iterations(table, fleet, rows, np.full(4, 0.129), np.zeros(4, np.int32), NOW_S)
    assert fleet.observed[0] == 2
    assert fleet.correction[0] == pytest.approx(1.0, rel=0.01)


def test_the_observed_pace_counts_on_the_instances_that_have_one() -> None:
    """Without one it is an iteration of all requests: 4 of 32 tokens."""
    table, fleet = cluster(1, 1)
    rows = table.ticket.nonzero()[0]
    table.instance[rows[:2]] = 1
    fleet.pace_s[1] = 0.5
    assert pace_s(rows, table, fleet).tolist() == [0.5, 0.5, *[pytest.approx(0.129)] * 2]


@pytest.mark.parametrize(
    ("served_s", "requests", "expected"),
    [
        (2.0, MIN_ENDED, 0.5),
        (2.0, MIN_ENDED - 1, 1.0),  # too few
        (0.5, MIN_ENDED, 1.0),  # iterations take no longer than the request
        (100.0, MIN_ENDED, MIN_SHARE),
    ],
)
def test_the_share_is_the_median_over_the_requests(served_s: float, requests: int, expected: float) -> None:
    share = ComputingShare()
    for _ in range(requests):
        share.record(1.0, served_s)
    assert share.value == expected
