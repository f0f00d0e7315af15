"""The pages of a list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.api.paging import page_after
from services.gateway.errors import ApiError


@given(items=st.lists(st.integers(0, 99).map(str), unique=True, max_size=20), limit=st.integers(1, 8))
def test_the_pages_together_are_the_list(items: list[str], limit: int) -> None:
    read: list[str] = []
    has_more = True
    while has_more:
        page, has_more = page_after(items, read[-1] if read else None, limit, str)
        assert len(page) == limit or not has_more
        read += page
    assert read == items


def test_a_page_after_an_item_that_is_not_listed_is_not_found() -> None:
    with pytest.raises(ApiError, match="no item has the id 'c'") as error:
        page_after(["a", "b"], "c", 5, str)
    assert (error.value.status, error.value.param) == (404, "after")
