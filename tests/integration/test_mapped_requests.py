"""Producers of a server with two cells: `dilaserve.requests` is mapped to either cell; outcomes arrive from both."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client

from dilaserve.stack.bus_users import authorization, new_passwords, request_mappings, user_url
from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.bus.users import BusUser
from shared.messages.requests import Outcome, OutcomeStatus, Request
from tests.support.nats import NatsServer, started_server

CELLS = ["cell0", "cell1", "cell2"]
PASSWORDS = new_passwords(["alice"])
REQUESTS = 60
LIMIT_S = 10.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    quoted = {user: json.dumps(password) for user, password in PASSWORDS.items()}
    more = authorization(CELLS[0], quoted, CELLS[1:]) + request_mappings(CELLS)
    with started_server(tmp_path_factory.mktemp("nats"), more=more) as started:
        yield started


@pytest.fixture
async def schedulers(server: NatsServer) -> AsyncIterator[list[Bus]]:
    """The connections of the cells' schedulers, which have set them up."""
    url = user_url(BusUser.SCHEDULER, PASSWORDS[BusUser.SCHEDULER], f"127.0.0.1:{server.port}")
    buses = [await Bus.connect(url, cell, name="scheduler") for cell in CELLS]
    for bus in buses:
        await bus.set_up()
    yield buses
    for bus in buses:
        await bus.close()


@pytest.mark.parametrize(
    ("user", "subject"), [("producer", "dilaserve.requests"), ("alice", "dilaserve.requests.alice")]
)
async def test_a_producer_reaches_all_cells_without_naming_one(
    server: NatsServer, schedulers: list[Bus], user: str, subject: str
) -> None:
    nc = Client()
    await nc.connect(user_url(user, PASSWORDS[user], f"127.0.0.1:{server.port}"), inbox_prefix=f"_INBOX_{user}")
    name = f"{user}.last" if user == "alice" else "last"
    outcomes = await nc.subscribe(f"dilaserve.*.outcomes.{name}")
    await nc.flush()
    stored = Counter[str]()
    for number in range(REQUESTS):
        request = Request(request_id=f"{user}-{number}", prompt="x", output_tokens=32)
        stored[(await nc.jetstream().publish(subject, encode(request, json=True))).stream] += 1
    assert set(stored) == {f"REQUESTS-{cell}" for cell in CELLS}
    for bus in schedulers:
        await bus.store(bus.subjects.outcomes(name), Outcome(request_id=name, status=OutcomeStatus.COMPLETED))
    async with asyncio.timeout(LIMIT_S):
        received = {(await outcomes.next_msg(timeout=LIMIT_S)).subject.split(".")[1] for _ in CELLS}
    assert received == set(CELLS)
    await nc.close()


@pytest.mark.parametrize("number", [2, 3, 7, 64])
def test_the_weights_of_the_cells_sum_to_the_whole(number: int) -> None:
    lines = [line for line in request_mappings([f"c{i}" for i in range(number)]).splitlines() if "weight" in line]
    weights = [int(line.partition("weight: ")[2].rstrip("%}")) for line in lines]
    assert (len(weights), sum(weights)) == (2 * number, 200)
    assert max(weights) - min(weights) <= 1
