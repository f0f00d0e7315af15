"""The OpenAPI document: FastAPI's own, with the bodies that routes read themselves, bounded in size."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from services.gateway.api.request_models import BatchBody, ChatBody, CompletionBody, TextBody
from services.gateway.api.response_models import ErrorBody

REF = "#/components/schemas/{model}"
BODIES: Sequence[type[BaseModel]] = (ChatBody, TextBody, BatchBody)
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "what is wrong with the request, and with which field"},
    "5XX": {"model": ErrorBody, "description": "the server's fault, or not now: 503 comes with Retry-After"},
}
IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "the same key with the same body is the same request, for a day: it has one outcome",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string", "enum": ["batch"]}},
}
FILE_FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}


def json_body(body: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`: it takes a `body`, one of BODIES."""
    content = {"application/json": {"schema": {"$ref": REF.format(model=body.__name__)}}}
    described: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    return described | {"parameters": [IDEMPOTENCY]} if issubclass(body, CompletionBody) else described


def document(app: FastAPI) -> None:
    """Give `app` its document, made when first asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, bodies = models_json_schema([(body, "validation") for body in BODIES], ref_template=REF)
            made["components"]["schemas"] |= bodies["$defs"]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
