"""A service whose user the bus no longer accepts ends, so that its supervisor starts it again.

If the connection breaks before the server's error is read, the client reconnects until the user is accepted.
"""

import asyncio
from pathlib import Path

import pytest

from shared.bus.client import Bus
from shared.tasks import during
from tests.support.nats import NatsServer
from tests.support.services import STOP_S, service
from tests.support.waiting import reached

CELL = "refused"


def users(password: str) -> str:
    own = '{ user: test, password: "test" }'
    return f'authorization {{ users: [ {own}, {{ user: service, password: "{password}" }} ] }}\n'


@pytest.mark.parametrize("name", ["scheduler", pytest.param("gateway", marks=pytest.mark.slow)])
async def test_a_service_ends_when_the_bus_refuses_its_user(name: str, tmp_path: Path, tiny_model_dir: Path) -> None:
    """nats-py does not connect again after such an error."""
    server = NatsServer(tmp_path, more=users("first"))
    server.start()
    bus = await Bus.connect(server.url.replace("//", "//test:test@"), CELL, name="test")
    url = server.url.replace("//", "//service:first@")
    settings = {"nats_url": url, "cell": CELL, "model": tiny_model_dir, "model_name": "tiny", "port": 0}
    try:
        await bus.set_up()
        health = await bus.nc.subscribe(bus.subjects.health(name))
        with service(name, settings | {"policy": "fixed"}, tmp_path / "log") as process:
            await health.next_msg(timeout=STOP_S)
            server.reload(users("second"))
            log = tmp_path / "log"
            await reached(lambda: process.poll() is not None or "the bus refuses the user" in log.read_text())
            if process.poll() is not None:
                assert process.returncode == 1
                assert "the bus has ended the connection" in log.read_text()
    finally:
        await bus.close()
        server.stop()


async def test_a_connection_with_data_left_to_send_reports_its_end(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, more=users("first"))
    server.start()
    bus = await Bus.connect(server.url.replace("//", "//service:first@"), CELL, name="test")

    async def publish() -> None:
        while bus.nc.is_connected:
            await bus.nc.publish("subject", b"data")
            await asyncio.sleep(0)

    async with during(publish()):
        server.reload(users("second"))
        await reached(lambda: bus.closed.is_set() or bus.nc.is_reconnecting)
    await bus.close()
    server.stop()
