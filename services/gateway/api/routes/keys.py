"""GET /keys: the API keys, their limits and their use."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from fastapi import APIRouter, Request
from pydantic import Field

from services.gateway.admission.admission import key_of
from services.gateway.api.app_context import AppContext
from services.gateway.view_models import List, ResponseModel
from shared.api_keys import ApiKey
from shared.messages.requests import ServingStats


class KeyView(ResponseModel):
    """An API key without its secret. None: no limit, or no such request."""

    id: str = Field(validation_alias="key_id")
    name: str
    operator: bool
    requests_per_minute: int | None  # its limit
    concurrency: int | None  # its limit
    max_priority: int
    in_flight: int  # requests at all gateways
    finished: int  # among those that GET /v1/requests lists
    slo_attainment: float | None  # share of these that met their SLO, of those that ran


def key_routes(context: AppContext) -> APIRouter:
    router = APIRouter()

    @router.get("/keys")
    async def list_keys(http: Request) -> List[KeyView]:
        """The API key that asks, with an operator's key all keys that are not revoked. Empty without `auth`."""
        finished = defaultdict[str, list[ServingStats | None]](list)  # by key
        for cell in context.cells:
            for outcome in cell.monitor.recent(lambda _: True):
                finished[outcome.key].append(outcome.stats)
        return List(data=[view(*found, finished[found[0].key_id]) for found in context.admission.keys(key_of(http))])

    def view(key: ApiKey, in_flight: int, finished: Sequence[ServingStats | None]) -> KeyView:
        ran = [stats.slo_met for stats in finished if stats is not None]
        attainment = sum(ran) / len(ran) if ran else None
        use = {"in_flight": in_flight, "finished": len(finished), "slo_attainment": attainment}
        return KeyView.model_validate(asdict(key) | use)

    return router
