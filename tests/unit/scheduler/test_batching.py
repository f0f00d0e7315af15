"""The batch of an iteration: never empty, the most urgent first, one kind of step where that is cheaper."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.algorithms.batching import MIN_BATCH, RECOMPUTE_SHARE, of_one_kind, within_pace
from shared.arrays import Bool, Float64, Int64


@dataclass(frozen=True)
class Requests:
    """Of k instances, each with at least one request. Shapes: [n]; latency_s [k, n + 1], separates [k]."""

    group: Int64
    pace_s: Float64
    joined: Bool
    recomputes: Bool
    latency_s: Float64
    separates: Bool

    def within_pace(self) -> Bool:
        return within_pace(self.group, self.pace_s, self.joined, self._iteration_s)

    def _iteration_s(self, group: Int64, requests: Int64) -> Float64:
        latency_s: Float64 = self.latency_s[group, requests]
        return latency_s

    def of_one_kind(self) -> Bool:
        return of_one_kind(self.group, self.recomputes, self.joined, self.separates)


@st.composite
def requests(draw: st.DrawFn, *, joined: bool = True) -> Requests:
    k = draw(st.integers(1, 3))
    extra = draw(st.lists(st.integers(0, k - 1), max_size=20))
    group = np.array(draw(st.permutations([*range(k), *extra])), dtype=np.int64)
    n = len(group)

    def flags(size: int) -> Bool:
        return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=np.bool_)

    pace = draw(st.lists(st.floats(0.01, 10) | st.just(np.inf), min_size=n, max_size=n))
    base_s, each_s = draw(st.floats(0.001, 1)), draw(st.floats(0, 0.5))
    latency_s = np.tile(base_s + each_s * np.arange(n + 1), (k, 1))
    return Requests(group, np.array(pace), flags(n) & joined, flags(n), latency_s, flags(k))


@given(requests())
def test_each_instance_gets_a_step_and_joined_requests_stay(some: Requests) -> None:
    for kept in (some.within_pace(), some.of_one_kind()):
        assert set(some.group[kept]) == set(some.group)
        assert kept[some.joined].all()


@given(requests())
def test_a_few_requests_are_never_held_back_for_the_pace(some: Requests) -> None:
    kept = np.bincount(some.group[some.within_pace()])
    assert (kept >= np.minimum(np.bincount(some.group), MIN_BATCH)).all()


@given(requests())
def test_no_request_that_sits_out_is_more_urgent_than_one_that_is_chosen(some: Requests) -> None:
    kept = some.within_pace()
    for index in set(some.group.tolist()):
        of = some.group == index
        chosen, rest = some.pace_s[of & kept & ~some.joined], some.pace_s[of & ~kept]
        assert not len(chosen) or not len(rest) or chosen.max() <= rest.min()


@given(requests(joined=False))
def test_a_larger_batch_is_as_short_as_its_most_urgent_request_needs(some: Requests) -> None:
    kept = some.within_pace()
    for index in set(some.group.tolist()):
        count = int(np.count_nonzero(kept & (some.group == index)))
        if count > MIN_BATCH:
            assert some.latency_s[index, count] <= some.pace_s[some.group == index].min()


def test_an_urgent_request_holds_back_the_others() -> None:
    """A policy that runs all requests would make iterations of 0.72 s; the urgent one needs 0.4 s."""
    one_instance, none_joined = np.zeros(6, np.int64), np.zeros(6, np.bool_)

    def iteration_s(_: Int64, number: Int64) -> Float64:
        return 0.12 * number.astype(np.float64)

    def chosen(*pace_s: float) -> list[int]:
        kept = within_pace(one_instance, np.array(pace_s), none_joined, iteration_s)
        return kept.nonzero()[0].tolist()

    assert chosen(9.0, 8.0, 0.4, 7.0, np.inf, 6.0) == [2, 3, 5]
    assert chosen(*[np.inf] * 6) == [0, 1, 2, 3, 4, 5]


@given(requests(joined=False))
def test_an_instance_that_separates_runs_one_kind_and_others_run_all(some: Requests) -> None:
    kept = some.of_one_kind()
    for index in set(some.group.tolist()):
        of = some.group == index
        if not some.separates[index]:
            assert kept[of].all()
            continue
        gathered = np.count_nonzero(some.recomputes & of) >= RECOMPUTE_SHARE * np.count_nonzero(of)
        assert (kept[of] == (some.recomputes[of] == gathered)).all()


@given(requests())
def test_a_request_of_another_kind_does_not_join_a_batch_of_one_kind(some: Requests) -> None:
    kept = some.of_one_kind()
    for index in some.separates.nonzero()[0].tolist():
        of = some.group == index
        kinds = set(some.recomputes[of & some.joined].tolist())
        if len(kinds) == 1:
            assert set(some.recomputes[of & kept].tolist()) == kinds
