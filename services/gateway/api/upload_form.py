"""Reads the multipart form of an upload, whose file is stored as it arrives."""

import io
from collections.abc import AsyncGenerator, Awaitable, Callable

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from services.gateway.api.request_body import BodyBudget, bounded
from services.gateway.errors import ApiError
from services.gateway.stores.file_store import MAX_FILE_BYTES

Write = Callable[[bytes], Awaitable[None]]


async def read_upload(
    http: Request, budget: BodyBudget, write: Callable[[bytes], Awaitable[int]]
) -> tuple[str, list[str]]:
    """Pass the form's file to `write`, which returns the number of bytes that are no longer in memory.

    Returns: the file's name, and the names of the form's other fields. Raises: ApiError naming the wrong field; errors
    of `bounded`.
    """
    with budget.body() as held:

        async def store(data: bytes) -> None:
            budget.hold(held, -await write(data))

        async def skip(data: bytes) -> None:
            budget.hold(held, -len(data))

        form = await _read(http, bounded(http, MAX_FILE_BYTES, budget, held), store, skip)
    purpose, files = form.get("purpose"), [file for file in form.getlist("file") if isinstance(file, UploadFile)]
    if purpose != "batch":
        raise ApiError(400, "purpose must be 'batch'", param="purpose", code="unsupported_value")
    if len(files) != 1:
        code = "invalid_value" if files else "missing_required_parameter"
        raise ApiError(400, "the form needs one part named file", param="file", code=code)
    # a charset such as UTF-7 can decode to half of a surrogate pair, which cannot be stored
    filename = (files[0].filename or "file").encode("utf-8", "replace").decode()
    return filename, [name for name in form if name not in {"file", "purpose"}]


async def _read(http: Request, parts: AsyncGenerator[bytes], store: Write, skip: Write) -> FormData:
    """`store` gets the parts of its file, and `skip` those of other files. Raises: ApiError if the form is invalid."""

    class Form(MultiPartParser):
        """Passes each part of the file on, instead of keeping it in a temporary file."""

        def on_headers_finished(self) -> None:
            super().on_headers_finished()
            part = self._current_part
            is_wanted, filename = part.field_name == "file", None
            if part.file is not None:
                part.file.file.close()
                filename = part.file.filename
            if part.file is not None or is_wanted:  # some clients send a file without a name
                part.file = _PassedFile(filename, store if is_wanted else skip)

    try:
        return await Form(http.headers, parts).parse()
    except (MultiPartException, UnicodeError) as error:
        message = error.message if isinstance(error, MultiPartException) else "its charset does not have its names"
        raise ApiError(400, f"cannot read the form: {message}", code="invalid_type") from None


class _PassedFile(UploadFile):
    """A file of a form that is passed on and not kept."""

    def __init__(self, filename: str | None, write: Write) -> None:
        super().__init__(io.BytesIO(), filename=filename)
        self._write = write

    async def write(self, data: bytes) -> None:
        await self._write(data)

    async def seek(self, offset: int) -> None:
        """Nothing is kept."""
