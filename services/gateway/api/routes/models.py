"""GET /v1/models."""

from fastapi import APIRouter

from services.gateway.api.errors import check_model
from services.gateway.api.response_models import List, Model
from services.gateway.app_context import AppContext


def model_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/models")
    card = context.text.card
    model = Model(id=card.name, created=int(context.started_s), owned_by="dilaserve", max_model_len=card.max_length)

    @router.get("")
    async def list_models() -> List[Model]:
        """The served model."""
        return List(data=[model])

    @router.get("/{name:path}")
    async def get_model(name: str) -> Model:
        """The served model by its name."""
        check_model(name, card.name)
        return model

    return router
