"""Deletes each stream and bucket of a whole stack under load: it is made again, and requests are served on."""

import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.faults.accounts import is_duplicated, received_outcomes
from experiments.faults.load import THRESHOLD, Answer, closed_loop
from experiments.live_cluster import SUBJECTS, chat_body, connected, held_out_requests
from shared.bus.subjects import stream_names
from shared.bus.users import BusUser
from tests.support.stack import Stack, new_data_dir, running_stack
from tests.support.waiting import reached, until

PROMPTS = [row.prompt for row in held_out_requests()[:5]]
OPTIONS = ("--instances", "2x1", "--policy", "dilaserve", "--thresholds", THRESHOLD, "--cache", "none")
CLIENTS, LINES = 3, 5
LIMIT_S = 60.0
BATCH_ENDS = {"completed", "failed", "cancelled", "not_found"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *OPTIONS) as running:
        yield running


async def start_batch(http: httpx.AsyncClient) -> str:
    """The id of a batch of LINES lines."""
    path = "/v1/chat/completions"
    line = {"method": "POST", "url": path, "body": chat_body(PROMPTS[0], max_tokens=32)}
    content = b"".join(msgspec.json.encode(line | {"custom_id": str(i)}) + b"\n" for i in range(LINES))
    uploaded = await http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    order = {"input_file_id": uploaded.json()["id"], "endpoint": path, "completion_window": "24h"}
    return str((await http.post("/v1/batches", json=order)).json()["id"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(stream_names(SUBJECTS)))
async def test_requests_are_served_on_after_a_stream_or_bucket_was_deleted(stack: Stack, name: str) -> None:
    nats_url = read_addresses(stack.data_dir).nats_urls[BusUser.OPERATOR]
    async with (
        httpx.AsyncClient(base_url=stack.url, timeout=LIMIT_S) as http,
        received_outcomes(nats_url) as received,
        connected(nats_url) as bus,
    ):

        async def status(batch_id: str) -> str:
            reply = await http.get(f"/v1/batches/{batch_id}")
            return str(reply.json()["status"] if reply.is_success else reply.json()["error"]["code"])

        async with closed_loop(http, PROMPTS, CLIENTS) as answers:
            batch_id = await start_batch(http)
            await reached(lambda: len(answers) >= CLIENTS, LIMIT_S)
            await bus.js.delete_stream(name)
            deleted_s = time.monotonic()

            def later() -> list[Answer]:
                return [each for each in answers if each.sent_s > deleted_s]

            await reached(lambda: len(later()) >= CLIENTS, LIMIT_S)

        async def has_ended() -> bool:
            return await status(batch_id) in BATCH_ENDS

        await until(has_ended, LIMIT_S)
        assert [each for each in answers if each.text is None] == []
        assert not any(is_duplicated(received[each.request_id]) for each in answers)
        texts = {each.prompt: {other.text for other in answers if other.prompt == each.prompt} for each in answers}
        assert all(len(found) == 1 for found in texts.values())
        assert name in await bus.stream_names()
        await start_batch(http)
