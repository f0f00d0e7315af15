"""Writes and reads objects of the bus's object store chunk by chunk, in the form of NATS's own clients.

nats-py waits for an object's bytes in a thread, and keeps a whole object that a client reads slowly in memory.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress

from nats.js.api import Header, ObjectInfo, ObjectMetaOptions, RawStreamMsg
from nats.js.errors import NotFoundError
from nats.js.kv import MSG_ROLLUP_SUBJECT
from nats.js.object_store import (
    OBJ_CHUNKS_PRE_TEMPLATE,
    OBJ_DEFAULT_CHUNK_SIZE,
    OBJ_DIGEST_TEMPLATE,
    OBJ_META_PRE_TEMPLATE,
    OBJ_STREAM_TEMPLATE,
)

from services.gateway.errors import ApiError
from shared.bus.client import Bus
from shared.bus.direct_reads import read_direct
from shared.bus.errors import bus_errors


class ObjectWriter:
    def __init__(self, bus: Bus, store: str, name: str) -> None:
        self.size = 0
        self._bus, self._store, self._name = bus, store, name
        self._nuid = uuid.uuid4().hex
        self._subject = OBJ_CHUNKS_PRE_TEMPLATE.format(bucket=store, obj=self._nuid)
        self._rest = bytearray()  # less than a chunk
        self._chunks, self._sha = 0, hashlib.sha256()

    async def write(self, data: bytes) -> int:
        """Append to the object. Returns: the number of bytes that it stored, earlier ones too. Raises: bus errors."""
        self.size += len(data)
        self._rest += data
        before = len(self._rest)
        while len(self._rest) >= OBJ_DEFAULT_CHUNK_SIZE:
            await self._write_chunk()
        return before - len(self._rest)

    async def finish(self, description: str) -> ObjectInfo:
        """Store the last chunk and the description. Raises: bus errors."""
        if self._rest:
            await self._write_chunk()
        info = ObjectInfo(
            name=self._name,
            description=description,
            options=ObjectMetaOptions(max_chunk_size=OBJ_DEFAULT_CHUNK_SIZE),
            bucket=self._store,
            nuid=self._nuid,
            size=self.size,
            chunks=self._chunks,
            digest=OBJ_DIGEST_TEMPLATE.format(digest=base64.urlsafe_b64encode(self._sha.digest()).decode()),
        )
        encoded_name = base64.urlsafe_b64encode(self._name.encode()).decode()
        subject = OBJ_META_PRE_TEMPLATE.format(bucket=self._store, obj=encoded_name)
        headers = {Header.ROLLUP.value: MSG_ROLLUP_SUBJECT}
        await self._bus.js.publish(subject, json.dumps(info.as_dict()).encode(), headers=headers)
        return info

    async def discard(self) -> None:
        """Delete the chunks. Raises: bus errors."""
        await self._bus.js.purge_stream(OBJ_STREAM_TEMPLATE.format(bucket=self._store), subject=self._subject)

    async def _write_chunk(self) -> None:
        chunk = bytes(self._rest[:OBJ_DEFAULT_CHUNK_SIZE])
        del self._rest[:OBJ_DEFAULT_CHUNK_SIZE]
        self._sha.update(chunk)
        self._chunks += 1
        await self._bus.js.publish(self._subject, chunk)


async def read_chunks(bus: Bus, info: ObjectInfo) -> AsyncIterator[bytes]:
    """The chunks of an object, each read when it is asked for, but the first one at once, before an empty one.

    Raises: ApiError 404 if a chunk is not there or is damaged; RetryLater if the bus does not answer.
    """
    lost = ApiError(404, "the content of the file is lost: upload it again", param="file_id", code="not_found")
    stream = OBJ_STREAM_TEMPLATE.format(bucket=info.bucket)
    subject = OBJ_CHUNKS_PRE_TEMPLATE.format(bucket=info.bucket, obj=info.nuid)
    sha, start = hashlib.sha256(), 1
    for number in range(info.chunks or 0):
        if (chunk := await _next_chunk(bus, stream, subject, start)) is None:
            raise lost
        sha.update(chunk.data or b"")
        start = (chunk.seq or 0) + 1
        if not number:
            yield b""
        yield chunk.data or b""
    if info.digest != OBJ_DIGEST_TEMPLATE.format(digest=base64.urlsafe_b64encode(sha.digest()).decode()):
        raise lost


async def _next_chunk(bus: Bus, stream: str, subject: str, start: int) -> RawStreamMsg | None:
    """The first chunk from the sequence `start` on. A server that does not have it yet is not the last to be asked."""
    found, _ = await read_direct(bus, stream, {"seq": start, "next_by_subj": subject, "batch": 1})
    if found:
        return found[0]
    with bus_errors("read the file"), suppress(NotFoundError):
        return await bus.js.get_msg(stream, seq=start, subject=subject, next=True)  # of the stream's leader
    return None
