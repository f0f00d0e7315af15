"""Clients that make a gateway hold bodies and files: unfinished bodies, many uploads, downloads that nobody reads.

They run in a process of the lowest priority, as if on a machine of their own: only the gateway's work may cost others.
"""

import asyncio
import os
from contextlib import suppress

import httpx

from experiments.faults.target import LocalTarget
from shared.run_in_process import LOWEST_PRIORITY, run_in_process

MIB = 1 << 20
PART = b" " * 65_536
BODIES, BODY_BYTES = 300, 4 * MIB - len(PART)
UPLOADS, DOWNLOADS, FILE_BYTES = 16, 16, 63 * MIB
SEND_S = 60.0  # limit of sending and of the first bytes of the replies; then all connections stay open for HOLD_S
HOLD_S = 10.0
HOST = b"Host: localhost\r\n"
FORM = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
FORM += b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
FORM_END = b"\r\n--b--\r\n"


async def unfinished_bodies(target: LocalTarget) -> None:
    """Send BODIES bodies without their last part."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    await run_in_process(_hold, target.url, HOLD_S, BODIES, head + _length(BODY_BYTES + len(PART)), BODY_BYTES)


async def many_uploads(target: LocalTarget) -> None:
    """Send UPLOADS files at once."""
    head = b"POST /v1/files HTTP/1.1\r\n" + HOST + b"Content-Type: multipart/form-data; boundary=b\r\n"
    head += _length(len(FORM) + FILE_BYTES + len(FORM_END)) + FORM
    await run_in_process(_hold, target.url, HOLD_S, UPLOADS, head, FILE_BYTES, FORM_END)


async def unread_downloads(target: LocalTarget) -> None:
    """Ask DOWNLOADS times for a large file, and read only the first bytes of the replies."""
    path = f"/v1/files/{await run_in_process(_uploaded, target.url)}/content".encode()
    await run_in_process(_hold, target.url, HOLD_S, DOWNLOADS, b"GET " + path + b" HTTP/1.1\r\n" + HOST, 0, b"\r\n")


def _uploaded(url: str) -> str:
    """The id of a new file."""
    os.nice(LOWEST_PRIORITY)
    files = {"file": ("a.jsonl", bytes(FILE_BYTES))}
    reply = httpx.post(f"{url}/v1/files", data={"purpose": "batch"}, files=files, timeout=SEND_S)
    return str(reply.raise_for_status().json()["id"])


def _length(size: int) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % size


def _hold(url: str, hold_s: float, connections: int, start: bytes, parts_bytes: int, end: bytes = b"") -> None:
    os.nice(LOWEST_PRIORITY)
    asyncio.run(_hold_open(url, hold_s, connections, start, parts_bytes, end))


async def _hold_open(url: str, hold_s: float, connections: int, start: bytes, parts_bytes: int, end: bytes) -> None:
    """Send `start`, spaces and `end` on each connection, and wait for a reply if there is an `end`, together at most
    SEND_S. Then keep the connections open for `hold_s`."""
    address = httpx.URL(url)
    opened = [await asyncio.open_connection(address.host, address.port, limit=4096) for _ in range(connections)]

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(start)
            for _ in range(0, parts_bytes, len(PART)):
                writer.write(PART)
                await writer.drain()
            writer.write(end)
            if end and b" 200 " not in (status := await reader.readline()):
                raise RuntimeError(f"the gateway replied {status!r}")

    with suppress(TimeoutError):
        async with asyncio.timeout(SEND_S):
            await asyncio.gather(*(send(*connection) for connection in opened))
    await asyncio.sleep(hold_s)
    for _, writer in opened:
        writer.transport.abort()
