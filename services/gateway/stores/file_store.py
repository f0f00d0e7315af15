"""Input and output files of batches, in the bus's object store. An object's description holds its owner."""

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Literal

from nats.js.api import ObjectInfo
from nats.js.errors import NotFoundError
from nats.js.object_store import ObjectStore
from pydantic import Field

from services.gateway.bus_connection import BusConnection
from services.gateway.errors import ApiError, not_found
from services.gateway.stores.object_chunks import ObjectWriter, read_chunks
from services.gateway.view_models import ResponseModel
from shared.bus.codec import decode, encode
from shared.bus.errors import BUS_ERRORS, bus_errors
from shared.bus.subjects import FILE_AGE_S
from shared.errors import BadInput
from shared.messages.gateway import StoredFile

MAX_FILE_BYTES = 64 * 1024 * 1024
ACCESS_TIMEOUT_S = 30.0  # of an operation on the list of files


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
    """Every method raises RetryLater if the bus does not answer, and ApiError 404 if the owner has no such file."""

    def __init__(self, connection: BusConnection, max_files: int, max_bytes: int) -> None:
        self._connection = connection
        self._max_files = max_files  # of one owner
        self._max_bytes = max_bytes
        self._uploads: dict[ObjectWriter, tuple[str, int]] = {}  # their owners, with the bytes of these before
        self._finishing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by owner

    @asynccontextmanager
    async def uploading(self, owner: str) -> AsyncIterator[ObjectWriter]:
        """A client's file, which is stored as it arrives, and deleted if the block fails.

        Raises: ApiError 413 if the owner's files have reached a limit.
        """
        stored = await self._check_room(owner)
        async with self._writing() as file:
            self._uploads[file] = owner, stored
            try:
                yield file
            finally:
                del self._uploads[file]

    async def write(self, upload: ObjectWriter, data: bytes) -> int:
        """As `ObjectWriter.write`. Raises: ApiError 413 if the uploads of the owner exceed its limit."""
        written = await upload.write(data)
        owner, stored = self._uploads[upload]
        self._check_bytes(stored + sum(file.size for file, (other, _) in self._uploads.items() if other == owner))
        return written

    async def finish(self, upload: ObjectWriter, filename: str) -> FileObject:
        """Raises: ApiError 400 if the file is empty; 413 if the owner has no room for it."""
        if not upload.size:
            raise ApiError(400, "file must not be empty", param="file", code="invalid_value")
        owner, _ = self._uploads[upload]
        async with self._finishing[owner]:  # so that concurrent uploads count each other
            await self._check_room(owner, upload.size)
            return await _finish(upload, filename, "batch", owner)

    async def add(self, rows: Iterable[bytes], filename: str, purpose: str, owner: str) -> FileObject:
        """Store a file of the gateway's own."""
        async with self._writing() as file:
            for row in rows:
                await file.write(row)
            return await _finish(file, filename, purpose, owner)

    async def get(self, file_id: str, owner: str, param: str = "file_id") -> FileObject:
        """`param`: the client's field with the id, which an error names."""
        return _describe(*await self._find(file_id, owner, param))

    async def content(self, file_id: str, owner: str) -> tuple[int, AsyncIterator[bytes]]:
        """A file's size and content, of which each chunk is read when it is asked for, the first one at once."""
        info, _ = await self._find(file_id, owner)
        chunks = read_chunks(self._connection.bus, info)
        await anext(chunks)
        return info.size or 0, chunks

    async def delete(self, file_id: str, owner: str) -> None:
        await self._find(file_id, owner)
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

    async def _check_room(self, owner: str, size: int = 0) -> int:
        """Returns: the bytes of the owner's files. Raises: ApiError 413 if a file of `size` exceeds a limit."""
        files = await self.owned_by(owner)
        if len(files) >= self._max_files:
            raise _no_room(f"this key has {len(files)} files; its maximum is {self._max_files}")
        stored = sum(file.bytes for file in files)
        self._check_bytes(stored + size)
        return stored

    def _check_bytes(self, size: int) -> None:
        if size > self._max_bytes:
            raise _no_room(f"the files of this key would have {size} bytes; its maximum is {self._max_bytes}")

    async def _find(self, file_id: str, owner: str, param: str = "file_id") -> tuple[ObjectInfo, StoredFile]:
        async with self._open(file_id, param) as store:
            info = await store.get_info(file_id)
        stored = _read(info)
        if stored is None or stored.owner != owner:
            raise not_found("file", file_id, param)
        return info, stored

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[ObjectWriter]:
        """A new file, which is deleted if the block fails."""
        bus = self._connection.bus
        file = ObjectWriter(bus, bus.subjects.files_store, f"file-{uuid.uuid4().hex}")
        with bus_errors("store the file"):
            try:
                yield file
            except BaseException:
                with suppress(*BUS_ERRORS):
                    await file.discard()
                raise

    @asynccontextmanager
    async def _open(self, file_id: str, param: str = "file_id") -> AsyncIterator[ObjectStore]:
        """The object store, for one operation on a file. Raises: ApiError 404 if the block does not find the file;
        RetryLater if the bus fails or ACCESS_TIMEOUT_S passes."""
        bus = self._connection.bus
        with bus_errors("access the files"):
            async with asyncio.timeout(ACCESS_TIMEOUT_S):
                store = await bus.js.object_store(bus.subjects.files_store)
                try:
                    yield store
                except NotFoundError:
                    raise not_found("file", file_id, param) from None


async def _finish(file: ObjectWriter, filename: str, purpose: str, owner: str) -> FileObject:
    stored = StoredFile(owner=owner, filename=filename, purpose=purpose, created_s=int(time.time()))
    return _describe(await file.finish(encode(stored, json=True).decode()), stored)


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
