"""The OpenAPI document against a running gateway: no request, valid or damaged, gets a 5xx or an undeclared reply."""

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from experiments.fuzz.mutations import mutated_body
from experiments.fuzz.routes import BODIES, ROUTES
from services.gateway.api.errors import _INVALID
from tests.support.gateway import MODEL, ONE_CELL, RunningGateway

pytestmark = ONE_CELL

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS_PATH = "/events"
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/rest-api.md"
DOCUMENTED_SCHEMAS = (
    *("ChatBody", "TextBody", "ResponseBody", "MessageBody", "CountTokensBody"),
    *("DecisionBody", "PredicateQuestion", "ChoiceQuestion", "ChoiceOption", "ScoreQuestion", "ScoreLevel"),
    *("Message", "StreamOptions", "BatchBody", "Serving"),
)


async def test_the_page_describes_every_path_and_field(lonely_gateway: RunningGateway) -> None:
    document = (await lonely_gateway.http.get("/openapi.json")).json()
    page = PAGE.read_text()
    paths = [
        (f"{method.upper()} {path}", what) for path, of in document["paths"].items() for method, what in of.items()
    ]
    schemas = [document["components"]["schemas"][name] for name in DOCUMENTED_SCHEMAS]
    fields = {name for schema in schemas for name in schema["properties"]}
    fields |= {found["name"] for _, what in paths for found in what.get("parameters", []) if found["in"] != "path"}
    assert [name for name in [*(path for path, _ in paths), *sorted(fields)] if f"`{name}`" not in page] == []


async def test_every_post_route_is_fuzzed(lonely_gateway: RunningGateway) -> None:
    document = (await lonely_gateway.http.get("/openapi.json")).json()
    assert {path for path, methods in document["paths"].items() if "post" in methods} == set(ROUTES)


@pytest.mark.parametrize("path", BODIES)
async def test_the_bodies_that_the_fuzzer_damages_are_valid(gateway: RunningGateway, path: str) -> None:
    reply = await gateway.http.post(path, json=BODIES[path] | ({} if path == "/v1/batches" else {"model": MODEL}))
    assert reply.status_code == (404 if path == "/v1/batches" else 200), reply.text  # no file has been uploaded


async def test_the_page_describes_every_error_code() -> None:
    sources = [path.read_text() for path in sorted((ROOT / "services/gateway").glob("**/*.py"))]
    codes = {code for source in sources for code in re.findall(r'code="(\w+)"', source)} - {"left"}  # never received
    codes |= {code for code, _ in _INVALID.values()}
    assert len(codes) > 20
    assert [code for code in sorted(codes) if f"`{code}`" not in PAGE.read_text()] == []


@pytest.mark.parametrize("examples", [3, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
async def test_requests_that_match_the_document_get_the_documented_replies(
    gateway: RunningGateway, examples: int
) -> None:
    schema = await asyncio.to_thread(schemathesis.openapi.from_url, f"{gateway.url}/openapi.json")
    operations: list[Any] = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    tried = [operation for operation in operations if operation.path != ENDLESS_PATH]
    assert tried
    for operation in tried:
        await asyncio.to_thread(_try, operation, examples)
    assert await gateway.readiness() == "ready"


def _try(operation: Any, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
    )
    @given(case=st.one_of(operation.as_strategy(), operation.as_strategy(schemathesis.GenerationMode.NEGATIVE)))
    def answers_as_declared(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    answers_as_declared()


INPUTS = 80


@pytest.mark.parametrize("path", BODIES)
async def test_a_damaged_body_never_gets_a_server_error(gateway: RunningGateway, path: str) -> None:
    rng, statuses = random.Random(path), set[int]()
    body = dict(BODIES[path]) | ({"model": "tiny-llada"} if "model" in BODIES[path] else {})
    for _ in range(INPUTS):
        sent = mutated_body(body, rng)
        reply = await gateway.http.post(path, content=sent, headers={"Content-Type": "application/json"})
        assert reply.status_code < 500, f"{sent!r}: {reply.text}"
        statuses.add(reply.status_code)
    assert 400 in statuses
