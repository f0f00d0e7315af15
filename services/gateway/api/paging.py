"""The pages of a list, as OpenAI's: each begins after the last item of the one before. Pure."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from services.gateway.errors import not_found

T = TypeVar("T")


def page_after(items: Iterable[T], after: str | None, limit: int, id_of: Callable[[T], str]) -> tuple[list[T], bool]:
    """At most `limit` items after the one with the id `after`, and whether there are more.

    Raises: ApiError 404 if no item has this id.
    """
    left = iter(items)
    if after is not None and all(id_of(item) != after for item in left):
        raise not_found("item", after, "after")
    page = list(islice(left, limit + 1))
    return page[:limit], len(page) > limit
