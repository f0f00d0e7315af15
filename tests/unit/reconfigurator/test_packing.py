"""Fillings of a node, the order of launches, the costs of steps in stage 1, and the search for the fewest GPUs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reconfigurator.planning.packing import fillings
from services.reconfigurator.planning.plan import Placement, PlanStep
from services.reconfigurator.planning.smallest_cluster import min_gpus, nodes_of, smallest
from services.reconfigurator.planning.stage2_assignment import order_steps
from services.reconfigurator.planning.step_costs import StepMix
from services.reconfigurator.planning.throughput import times_sustained
from tests.support.small_plans import small_input


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


numbers = st.integers(min_value=1, max_value=300)


@given(needed=numbers, at_least=numbers, at_most=numbers)
def test_the_search_finds_the_first_number_that_suffices(needed: int, at_least: int, at_most: int) -> None:
    tried: list[int] = []

    def suffices(gpus: int) -> bool:
        tried.append(gpus)
        return gpus >= needed

    at_most = max(at_most, at_least)
    found = smallest(suffices, at_least, at_most)
    assert found == (max(needed, at_least) if needed <= at_most else None)
    assert len(set(tried)) == len(tried) <= 2 * 9 + 2
    assert all(at_least <= gpus <= at_most for gpus in tried)


@given(gpus=numbers, per_node=numbers)
def test_all_nodes_are_full_but_the_last(gpus: int, per_node: int) -> None:
    *full, last = nodes_of(gpus, per_node)
    assert sum(full) + last == gpus
    assert set(full) <= {per_node}
    assert 0 < last <= per_node


@given(st.integers(0, 300), st.integers(1, 8))
def test_fewer_gpus_than_the_least_cannot_sustain_the_load_with_any_degree(seed: int, needed: int) -> None:
    p = small_input(seed, cached=bool(seed % 2))
    with_one = max(times_sustained(p, {degree: 1}) / degree for degree in p.degrees)  # of the best degree
    loaded = p.at_rates(p.RPS * needed * with_one)  # keeps this number of its GPUs busy
    assert min_gpus(loaded) == max(needed, p.degrees[0])


@pytest.mark.parametrize("prompt", [0.0, 64.0, 4096.0])
@pytest.mark.parametrize("recompute_batch", [32.0, 1024.0, 65536.0])
def test_a_recompute_batch_shares_at_most_one_iteration(prompt: float, recompute_batch: float) -> None:
    """As many batches share as there are cache batches for them: 6 cache steps for each of 2 recompute steps."""
    each = np.array([1.0])
    of = StepMix(prompt * each, 64 * each, each, max_tokens_per_step=4.0, block_length=32, exact_cache=False)
    cache_batches = 14 * 32 / 256
    recompute_batches = 2 * (prompt + 64) / recompute_batch
    [share] = of.shared_share(np.array([recompute_batch]), 256.0)
    assert share == pytest.approx(min(cache_batches / recompute_batches, 1.0))
