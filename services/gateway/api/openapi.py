"""The OpenAPI document: FastAPI's, plus the bodies that routes read themselves and the plans that they write."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from services.gateway.api.request_models import ServedBody
from services.gateway.api.response_models import PlanList

SCHEMAS = "#/components/schemas/"
_bodies: dict[str, type[BaseModel]] = {}  # those that routes read themselves, by name
IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Repeating a key with the same body within a day returns the same outcome.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string", "enum": ["batch"]}},
}
PLANS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": {"$ref": SCHEMAS + PlanList.__name__}}}}
}
FILE_FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}


def json_body(body: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads a `body`, whose schema the document then has."""
    _bodies[body.__name__] = body
    content = {"application/json": {"schema": {"$ref": SCHEMAS + body.__name__}}}
    described: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    return described | {"parameters": [IDEMPOTENCY]} if issubclass(body, ServedBody) else described


def errors(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of routes whose errors have the body `model`."""
    return {
        "4XX": {"model": model, "description": "The request is invalid or refused; `param` names the wrong field."},
        "5XX": {"model": model, "description": "The server failed, or is unavailable: 503 has `Retry-After`."},
    }


def streamed(whole: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that replies with a `whole`, or with a stream."""
    stream: dict[str, Any] = {"text/event-stream": {}}
    return {200: {"model": whole, "content": stream, "description": "The reply; with `stream`, server-sent events."}}


def install_openapi(app: FastAPI) -> None:
    """Have `app` build its document at the first request for it."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, bodies = models_json_schema(
                [(body, "validation") for body in _bodies.values()], ref_template=SCHEMAS + "{model}"
            )
            _, plans = msgspec.json.schema_components([PlanList], ref_template=SCHEMAS + "{name}")
            schema["components"]["schemas"] |= bodies["$defs"] | plans
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
