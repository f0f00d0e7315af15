"""Input and output files of batches, in the bus's object store. An object's description holds its owner."""

import asyncio
import io
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from nats.js.api import ObjectInfo, ObjectMeta
from nats.js.errors import NotFoundError
from nats.js.object_store import ObjectStore
from pydantic import Field

from services.gateway.bus_connection import BusConnection
from services.gateway.errors import ApiError, not_found
from services.gateway.view_models import ResponseModel
from shared.bus.codec import decode, encode
from shared.bus.errors import bus_errors
from shared.bus.subjects import FILE_AGE_S
from shared.errors import BadInput
from shared.messages.gateway import StoredFile

MAX_FILE_BYTES = 64 * 1024 * 1024
ACCESS_TIMEOUT_S = 30.0  # the chunks of a deleted file, or an unavailable bus, never arrive


class FileObject(ResponseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Unix time, seconds")
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileStore:
    """Every method raises RetryLater if the bus does not answer."""

    def __init__(self, connection: BusConnection, max_files: int, max_bytes: int) -> None:
        self._connection = connection
        self._max_files = max_files  # of one owner
        self._max_bytes = max_bytes
        self._uploading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by owner

    async def upload(self, content: bytes, filename: str, owner: str) -> FileObject:
        """Store a client's file. Raises: ApiError as `add`; 413 if the owner's files would exceed a limit."""
        async with self._uploading[owner]:  # so that concurrent uploads count each other
            files = await self.owned_by(owner)
            if len(files) >= self._max_files:
                raise _no_room(f"this key has {len(files)} files; its maximum is {self._max_files}")
            size = sum(file.bytes for file in files) + len(content)
            if size > self._max_bytes:
                raise _no_room(f"the files of this key would have {size} bytes; its maximum is {self._max_bytes}")
            return await self.add(content, filename, "batch", owner)

    async def add(self, content: bytes, filename: str, purpose: str, owner: str) -> FileObject:
        """Raises: ApiError 400 if the file is empty."""
        if not content:
            raise ApiError(400, "file must not be empty", param="file", code="invalid_value")
        stored = StoredFile(owner=owner, filename=filename, purpose=purpose, created_s=int(time.time()))
        file_id = f"file-{uuid.uuid4().hex}"
        async with self._open(file_id) as store:
            info = await store.put(file_id, content, ObjectMeta(description=encode(stored, json=True).decode()))
        return _describe(info, stored)

    async def get(self, file_id: str, owner: str) -> FileObject:
        """Raises: ApiError 404 if the owner has no such file."""
        async with self._open(file_id) as store:
            info = await store.get_info(file_id)
        stored = _read(info)
        if stored is None or stored.owner != owner:
            raise not_found("file", file_id, "file_id")
        return _describe(info, stored)

    async def content(self, file_id: str, owner: str) -> bytes:
        """Raises: ApiError 404 if the owner has no such file."""
        await self.get(file_id, owner)
        buffer = io.BytesIO()
        async with self._open(file_id) as store:
            await store.get(file_id, writeinto=buffer)
        return buffer.getvalue()

    async def delete(self, file_id: str, owner: str) -> None:
        """Raises: ApiError 404 if the owner has no such file."""
        await self.get(file_id, owner)
        async with self._open(file_id) as store:
            await store.delete(file_id)

    async def owned_by(self, owner: str) -> list[FileObject]:
        """The owner's files, newest first."""
        async with self._open("") as store:
            try:
                infos = await store.list(ignore_deletes=True)
            except NotFoundError:  # the store is empty
                return []
        owned = [_describe(info, stored) for info in infos if (stored := _read(info)) and stored.owner == owner]
        return sorted(owned, key=lambda file: (-file.created_at, file.id))

    @asynccontextmanager
    async def _open(self, file_id: str) -> AsyncIterator[ObjectStore]:
        """The object store, for one operation on a file. Raises: ApiError 404 if the block does not find the file;
        RetryLater if the bus fails or ACCESS_TIMEOUT_S passes."""
        bus = self._connection.bus
        with bus_errors("access the files"):
            async with asyncio.timeout(ACCESS_TIMEOUT_S):
                store = await bus.js.object_store(bus.subjects.files_store)
                try:
                    yield store
                except NotFoundError:
                    raise not_found("file", file_id, "file_id") from None


def _no_room(message: str) -> ApiError:
    return ApiError(413, f"{message}; delete files first", param="file", code="storage_limit_exceeded")


def _read(info: ObjectInfo) -> StoredFile | None:
    try:
        return decode((info.description or "").encode(), StoredFile)
    except BadInput:
        return None


def _describe(info: ObjectInfo, stored: StoredFile) -> FileObject:
    return FileObject(
        id=info.name,
        bytes=info.size or 0,
        created_at=stored.created_s,
        expires_at=stored.created_s + int(FILE_AGE_S),
        filename=stored.filename,
        purpose=stored.purpose,
    )
