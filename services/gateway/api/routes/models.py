"""GET /v1/models."""

from fastapi import APIRouter

from services.gateway.api.app_context import AppContext
from services.gateway.api.response_models import Model
from services.gateway.model_cells import ModelCells
from services.gateway.view_models import List


def model_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/models")

    def describe(model: ModelCells) -> Model:
        max_length, created = model.text.card.max_length, int(context.started_s)
        return Model(id=model.name, created=created, owned_by="dilaserve", max_model_len=max_length)

    @router.get("")
    async def list_models() -> List[Model]:
        """The served models."""
        return List(data=[describe(model) for model in context.models])

    @router.get("/{name:path}")
    async def get_model(name: str) -> Model:
        """A served model by its name."""
        return describe(context.cells_of(name))

    return router
