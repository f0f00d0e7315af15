"""Files of batches: kept in the bus's object store, each with a word on whose it is."""

import asyncio
import io
import time
import uuid
from collections.abc import Awaitable
from typing import TypeVar

import nats.errors
from nats.js.api import ObjectInfo, ObjectMeta
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from services.gateway.api.errors import ApiError
from services.gateway.api.response_models import FileObject
from services.gateway.bus_connection import BusConnection
from shared.bus.codec import decode, encode
from shared.bus.subjects import FILE_AGE_S
from shared.errors import BadInput, RetryLater
from shared.messages.gateway import StoredFile

MAX_FILE_BYTES = 64 * 1024 * 1024
ANSWER_S = 30.0  # how long anything may take: what a deleted file still lacks, or a bus that went away, never comes

T = TypeVar("T")


class FileStore:
    """Stores and finds files. Every method raises RetryLater if the bus does not answer."""

    def __init__(self, link: BusConnection) -> None:
        self._link = link

    async def add(self, content: bytes, filename: str, purpose: str, owner: str) -> FileObject:
        """Raises: ApiError 400 for a file without content."""
        if not content:
            raise ApiError(400, "file must not be empty", param="file", code="invalid_value")
        about = StoredFile(owner=owner, filename=filename, purpose=purpose, created_s=int(time.time()))
        file_id = f"file-{uuid.uuid4().hex}"
        store = await self._store()
        info = await _answered(store.put(file_id, content, ObjectMeta(description=encode(about, json=True).decode())))
        return _describe(file_id, info, about)

    async def about(self, file_id: str, owner: str) -> FileObject:
        """Raises: ApiError 404 if the owner has no such file."""
        try:
            info = await _answered((await self._store()).get_info(file_id))
        except NotFoundError:
            raise no_such_file(file_id) from None
        about = _read(info)
        if about is None or about.owner != owner:
            raise no_such_file(file_id)
        return _describe(file_id, info, about)

    async def content(self, file_id: str, owner: str) -> bytes:
        """Raises: ApiError 404 if the owner has no such file."""
        await self.about(file_id, owner)
        into = io.BytesIO()
        try:
            await _answered((await self._store()).get(file_id, writeinto=into))
        except NotFoundError:
            raise no_such_file(file_id) from None
        return into.getvalue()

    async def delete(self, file_id: str, owner: str) -> None:
        """Raises: ApiError 404 if the owner has no such file."""
        await self.about(file_id, owner)
        try:
            await _answered((await self._store()).delete(file_id))
        except NotFoundError:
            raise no_such_file(file_id) from None

    async def of(self, owner: str) -> list[FileObject]:
        """The owner's files, the latest first."""
        try:
            infos = await _answered((await self._store()).list(ignore_deletes=True))
        except NotFoundError:
            return []
        found = [(info, about) for info in infos if (about := _read(info)) is not None and about.owner == owner]
        described = (_describe(info.name, info, about) for info, about in found)
        return sorted(described, key=lambda file: (-file.created_at, file.id))

    async def _store(self) -> ObjectStore:
        bus = self._link.bus
        try:
            return await _answered(bus.js.object_store(bus.subjects.files_store))
        except NotFoundError:
            raise RetryLater("the files are not there yet") from None


def no_such_file(file_id: str) -> ApiError:
    return ApiError(404, f"there is no file {file_id[:100]!r}", param="file_id", code="not_found")


async def _answered(asked: Awaitable[T]) -> T:
    """Raises: NotFoundError; RetryLater when the bus does not answer."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await asked
    except (NotFoundError, ObjectNotFoundError):
        raise NotFoundError from None
    except (nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise RetryLater(f"the files are not answered: {error!r}") from error


def _read(info: ObjectInfo) -> StoredFile | None:
    try:
        return decode((info.description or "").encode(), StoredFile)
    except BadInput:
        return None


def _describe(file_id: str, info: ObjectInfo, about: StoredFile) -> FileObject:
    return FileObject(
        id=file_id,
        bytes=info.size or 0,
        created_at=about.created_s,
        expires_at=about.created_s + int(FILE_AGE_S),
        filename=about.filename,
        purpose=about.purpose,
    )
