"""Bodies with random damages get a reply or a 4xx; `python -m experiments.fuzz` sends more of them."""

import random

import pytest

from experiments.fuzz.mutations import mutated_body
from experiments.fuzz.routes import BODIES
from tests.support.gateway import ONE_CELL, RunningGateway

pytestmark = ONE_CELL

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
