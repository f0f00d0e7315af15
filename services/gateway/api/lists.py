"""Selects the items of a list. Its pages are as OpenAI's: each begins after the last item of the one before. Pure."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from services.gateway.errors import not_found
from shared.api_keys import ApiKey
from shared.messages.requests import Outcome, UnfinishedQuery

T = TypeVar("T")

MAX_PAGE = 500  # requests
Status = Literal["in_progress", "completed", "refused", "rejected", "failed", "cancelled"]


class RequestFilter(BaseModel):
    """The parameters of GET /v1/requests. None: no filter; of `status`: all finished requests."""

    model_config = ConfigDict(extra="forbid")  # a filter with a typing error would list all
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    after: Annotated[str | None, Field(description="id of the last request of the previous page")] = None
    status: Annotated[Status | None, Field(description="null: all finished ones")] = None
    slo_met: bool | None = None
    key: Annotated[str | None, Field(description="id of an API key; empty: requests without one")] = None
    instance: Annotated[
        str, Field(description="that ran a step, or for `in_progress` runs the next one; empty: any")
    ] = ""
    id: Annotated[str, Field(description="a part of the id, or the whole id of any request of the last day")] = ""

    def accepts(self, outcome: Outcome, viewer: ApiKey) -> bool:
        """Whether a finished request passes the filter and the viewer may see it."""
        stats = outcome.stats
        return (
            viewer.may_see(outcome.key)
            and self.status in (None, outcome.status)
            and self.key in (None, outcome.key)
            and (self.slo_met is None or (stats is not None and stats.slo_met is self.slo_met))
            and (not self.instance or (stats is not None and self.instance in stats.instances))
            and self.id in outcome.request_id
        )

    def query(self, viewer: ApiKey) -> UnfinishedQuery | None:
        """The query for unfinished requests. Returns: None if none can match."""
        if self.slo_met is not None or (self.key is not None and not viewer.may_see(self.key)):
            return None
        key = self.key if viewer.operator else viewer.key_id
        return UnfinishedQuery(key=key, instance=self.instance, id_part=self.id)


def page_after(items: Iterable[T], after: str | None, limit: int, id_of: Callable[[T], str]) -> tuple[list[T], bool]:
    """At most `limit` items after the one with the id `after`, if it names one, and whether there are more.

    Raises: ApiError 404 if no item has this id.
    """
    left = iter(items)
    if after and all(id_of(item) != after for item in left):
        raise not_found("item", after, "after")
    page = list(islice(left, limit + 1))
    return page[:limit], len(page) > limit
