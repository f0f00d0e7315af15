"""The pages that the scheduler knows each instance to have."""

import numpy as np
import pytest

from services.scheduler.state.prefix_index import PrefixIndex

PAGE = 32  # tokens


def index_of(pages: int) -> PrefixIndex:
    index = PrefixIndex()
    index.update(0, pages * PAGE + PAGE - 1, PAGE)
    return index


def cached_pages(index: PrefixIndex, names: list[bytes], size: int = 1) -> list[int]:
    """The pages of a text with these that each instance has."""
    return [int(tokens) // PAGE for tokens in np.broadcast_to(index.cached_tokens(names, size), size)]


@pytest.mark.parametrize("capacity", [1, 3, 4])
def test_an_instance_keeps_as_many_whole_pages_as_it_has_room_for(capacity: int) -> None:
    index, names = index_of(capacity), [bytes([i]) for i in range(3)]
    index.store(0, names)
    assert cached_pages(index, names, 2) == [min(capacity, 3), 0]


def test_the_least_recently_used_pages_are_forgotten_first_and_a_beginning_is_kept() -> None:
    index, old, new = index_of(4), [b"a", b"b", b"c"], [b"x", b"y"]
    index.store(0, old)
    index.store(0, old[:1])
    index.store(0, new)
    assert [cached_pages(index, names) for names in (new, old)] == [[2], [2]]
    index.store(0, [b"p", b"q", b"r"])
    assert [cached_pages(index, names) for names in (new, old)] == [[1], [0]]


def test_an_instance_with_other_pages_is_left_out_until_no_other_has_any() -> None:
    index = index_of(2)
    index.update(1, 640, 2 * PAGE)
    index.store(1, [b"a"])
    assert cached_pages(index, [b"a"], 2) == [0, 0]
    index.forget(0)
    assert index.page_tokens == 0
    index.update(1, 640, 2 * PAGE)
    index.store(1, [b"a"])
    assert cached_pages(index, [b"a"], 2) == [0, 2]
