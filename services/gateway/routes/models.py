"""GET /v1/models."""

from typing import Any

from fastapi import APIRouter

from services.gateway.errors import no_such_model
from services.gateway.parts import Parts


def model_routes(parts: Parts) -> APIRouter:
    router = APIRouter(prefix="/v1/models")
    card = parts.text.card
    model = {
        "id": card.name,
        "object": "model",
        "created": int(parts.started_s),
        "owned_by": "dilaserve",
        "max_model_len": card.max_length,
    }

    @router.get("")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @router.get("/{name:path}")
    async def get_model(name: str) -> dict[str, Any]:
        if name != card.name:
            raise no_such_model(name, card.name)
        return model

    return router
