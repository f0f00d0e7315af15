"""The state of the gateway and of what it serves: its health and metrics, the models, cells, plans and API keys."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field

from services.gateway.admission.admission import key_of
from services.gateway.api.app_context import AppContext
from services.gateway.api.completion_stream import NO_CACHE
from services.gateway.api.openapi import PLANS
from services.gateway.api.response_models import Model, ModelList, PlanList, Status
from services.gateway.cell_context import CellContext
from services.gateway.console.cluster_view import ClusterView, Update
from services.gateway.model_cells import ModelCells
from services.gateway.view_models import List, ResponseModel
from shared.api_keys import ApiKey
from shared.bus.plan_history import read_plans
from shared.messages.plans import MAX_PLANS
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


def health_routes(context: AppContext) -> APIRouter:
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> Status:
        """200 while the process is alive."""
        return Status(status="ok")

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready")
    async def ready() -> Status:
        """200 if requests for a model can be served, else 503 with the reasons."""
        context.check_ready()
        return Status(status="ready")

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        reasons = [reason for cell in context.cells for reason in cell.readiness.reasons()]
        context.metrics.active.set(sum(cell.inflight.count for cell in context.cells))
        context.metrics.set_readiness(reasons, context.own_cell.readiness.storage)
        led = {model.name: [cell.readiness.stats for cell in model.cells] for model in context.models}
        context.metrics.vllm.set_load({name: [each for each in cells if each] for name, cells in led.items()})
        return Response(generate_latest(context.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def state_routes(context: AppContext) -> APIRouter:
    router = APIRouter()

    def describe(model: ModelCells) -> Model:
        created = int(context.started_s)
        return Model(
            id=model.name,
            created=created,
            owned_by="dilaserve",
            max_model_len=model.text.card.max_length,
            display_name=model.name,
            created_at=datetime.fromtimestamp(created, UTC),
        )

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """The served models."""
        models = [describe(model) for model in context.models]
        return ModelList(data=models, has_more=False, first_id=models[0].id, last_id=models[-1].id)

    @router.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Model:
        """A served model by its name."""
        return describe(context.cells_of(name))

    @router.get("/cluster")
    async def cluster(model: str | None = None, cell: str | None = None) -> ClusterView:
        """The nodes and instances of a cell of a model, by default the first one, with their load and state."""
        return _find_cell(context, model, cell).monitor.cluster()

    @router.get(
        "/events",
        response_class=StreamingResponse,
        responses={200: {"model": Update, "content": {"text/event-stream": {}}, "description": "Server-sent events."}},
    )
    async def events(model: str | None = None, cell: str | None = None) -> StreamingResponse:
        """One update of the cell per second; the first contains the last hour."""
        updates = _find_cell(context, model, cell).monitor.updates()
        data = (format_sse_event(data_str=update.model_dump_json()) async for update in updates)
        return EventSourceResponse(data, headers=NO_CACHE)

    @router.get("/plans", responses=PLANS)
    async def plans(
        limit: Annotated[int, Query(ge=1, le=MAX_PLANS)] = 50, model: str | None = None, cell: str | None = None
    ) -> Response:
        """The reconfigurator's decisions, newest first, and whether it runs."""
        found = _find_cell(context, model, cell)
        records = await read_plans(found.connection.bus, limit)
        plans = PlanList(data=records, reconfigurator=found.monitor.reconfigurator)
        return Response(msgspec.json.encode(plans), media_type="application/json")

    @router.get("/keys")
    async def list_keys(http: Request) -> List[KeyView]:
        """The API key that asks, with an operator's key all keys that are not revoked. Empty without `auth`."""
        finished = defaultdict[str, list[ServingStats | None]](list)  # by key
        for cell in context.cells:
            for outcome in cell.monitor.recent():
                finished[outcome.key].append(outcome.stats)
        return List(
            data=[_key_view(*found, finished[found[0].key_id]) for found in context.admission.keys(key_of(http))]
        )

    return router


def _find_cell(context: AppContext, model: str | None, cell: str | None) -> CellContext:
    found = context.models[0] if model is None else context.cells_of(model)
    return found.first if cell is None else found.named(cell)


def _key_view(key: ApiKey, in_flight: int, finished: Sequence[ServingStats | None]) -> KeyView:
    ran = [stats.slo_met for stats in finished if stats is not None]
    attainment = sum(ran) / len(ran) if ran else None
    use = {"in_flight": in_flight, "finished": len(finished), "slo_attainment": attainment}
    return KeyView.model_validate(asdict(key) | use)
