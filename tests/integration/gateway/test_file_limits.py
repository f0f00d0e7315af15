"""Files: their maximum number and size, the form of an upload, the list."""

import asyncio

import httpx
import msgspec
import pytest

from services.gateway.settings import GatewaySettings
from shared.text import TextModel
from tests.support.gateway import ONE_CELL, OWN_CELL, RunningGateway, ready

pytestmark = ONE_CELL

KIB = b"x" * 1024


async def upload(gateway: RunningGateway, content: bytes = KIB) -> httpx.Response:
    return await gateway.http.post("/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"})


@OWN_CELL
@pytest.mark.parametrize("limit", [{"max_files_per_key": 2}, {"max_file_bytes_per_key": 2 * len(KIB)}])
async def test_files_beyond_a_keys_limit_are_refused(
    settings: GatewaySettings, text: TextModel, scheduler: object, limit: dict[str, int]
) -> None:
    async with ready(msgspec.structs.replace(settings, **limit), text) as gateway:
        replies = await asyncio.gather(*(upload(gateway) for _ in range(4)))
        assert sorted(reply.status_code for reply in replies) == [200, 200, 413, 413]
        refused = next(reply.json()["error"] for reply in replies if reply.status_code == 413)
        assert refused["code"] == "storage_limit_exceeded"
        assert str(*limit.values()) in refused["message"]
        stored = next(reply.json()["id"] for reply in replies if reply.status_code == 200)
        assert (await gateway.http.delete(f"/v1/files/{stored}")).status_code == 200
        assert (await upload(gateway)).status_code == 200


@pytest.mark.parametrize(("charset", "filename"), [("utf-7", "?.jsonl"), ("undefined", None)])
async def test_the_charset_of_a_form_may_be_any_that_has_its_names(
    gateway: RunningGateway, charset: str, filename: str | None
) -> None:
    parts = [b'name="purpose"\r\n\r\nbatch', b'name="file"; filename="+2AA-.jsonl"\r\n\r\nx']
    form = b"".join(b"--b\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts) + b"--b--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=b; charset=" + charset}
    reply = await gateway.http.post("/v1/files", content=form, headers=kind)
    assert (reply.status_code, reply.json().get("filename")) == (200 if filename else 400, filename)


@pytest.mark.parametrize("name", [b"", b"; filename*=UTF-8''na%C3%AFve.jsonl", b'; filename=""'])
async def test_a_file_needs_no_name(gateway: RunningGateway, name: bytes) -> None:
    parts = [b'name="file"' + name + b"\r\n\r\nx", b'name="purpose"\r\n\r\nbatch']
    form = b"".join(b"--b\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts) + b"--b--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    reply = (await gateway.http.post("/v1/files", content=form, headers=kind)).json()
    assert (reply["bytes"], reply["filename"]) == (1, "file")


async def test_other_fields_of_a_form_are_named_as_ignored(gateway: RunningGateway) -> None:
    fields = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    reply = await gateway.http.post("/v1/files", files={"file": ("a.jsonl", KIB)}, data=fields)
    assert reply.status_code == 200, reply.text
    assert reply.headers["X-Dilaserve-Ignored"] == "expires_after[anchor], expires_after[seconds]"
    assert "X-Dilaserve-Ignored" not in (await upload(gateway)).headers


async def test_files_are_listed_in_either_order(gateway: RunningGateway) -> None:
    for _ in range(2):
        assert (await upload(gateway)).status_code == 200
    ids = {}
    for order in ("desc", "asc"):
        reply = await gateway.http.get("/v1/files", params={"order": order})
        ids[order] = [file["id"] for file in reply.json()["data"]]
    assert ids["asc"] == ids["desc"][::-1] != ids["desc"]
    assert (await gateway.http.get("/v1/files", params={"order": "up"})).json()["error"]["param"] == "order"
