"""Uploads count against a key's rate, and its files have a maximum number and size."""

import asyncio

import httpx
import msgspec
import pytest

from services.gateway.settings import GatewaySettings
from shared.text import TextModel
from tests.support.gateway import RunningGateway, running

KIB = b"x" * 1024


async def upload(gateway: RunningGateway, content: bytes = KIB) -> httpx.Response:
    return await gateway.http.post("/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"})


@pytest.mark.parametrize("limit", [{"max_files_per_key": 2}, {"max_file_bytes_per_key": 2 * len(KIB)}])
async def test_files_beyond_a_keys_limit_are_refused(
    settings: GatewaySettings, text: TextModel, scheduler: object, limit: dict[str, int]
) -> None:
    async with running(msgspec.structs.replace(settings, **limit), text) as gateway:
        await gateway.until("ready")
        replies = await asyncio.gather(*(upload(gateway) for _ in range(4)))
        assert sorted(reply.status_code for reply in replies) == [200, 200, 413, 413]
        refused = next(reply.json()["error"] for reply in replies if reply.status_code == 413)
        assert refused["code"] == "storage_limit_exceeded"
        assert str(*limit.values()) in refused["message"]
        stored = next(reply.json()["id"] for reply in replies if reply.status_code == 200)
        assert (await gateway.http.delete(f"/v1/files/{stored}")).status_code == 200
        assert (await upload(gateway)).status_code == 200
