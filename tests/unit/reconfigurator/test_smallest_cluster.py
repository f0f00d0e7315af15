"""The search for the fewest GPUs that suffice."""

from hypothesis import given
from hypothesis import strategies as st

from services.reconfigurator.planning.smallest_cluster import nodes_of, smallest

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
