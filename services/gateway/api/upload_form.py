"""Reads the multipart form of an upload, whose file is stored as it arrives."""

import io
from collections.abc import Awaitable, Callable

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from services.gateway.api.body_budget import HeldBody
from services.gateway.api.request_body import bounded
from services.gateway.errors import ApiError
from services.gateway.stores.file_store import MAX_FILE_BYTES, Upload


async def read_upload(http: Request, held: HeldBody, upload: Upload) -> tuple[str, list[str]]:
    """Store the form's file. Returns: its name, and the names of the form's other fields.

    Raises: ApiError naming the wrong field; errors of `bounded`.
    """

    async def store(data: bytes) -> None:
        held.drop(await upload.write(data))

    async def skip(data: bytes) -> None:
        held.drop(len(data))

    class Form(MultiPartParser):
        """Passes each part of the file on, instead of keeping it in a temporary file."""

        def on_headers_finished(self) -> None:
            super().on_headers_finished()
            part = self._current_part
            if part.file is not None:
                part.file.file.close()
                part.file = _PassedFile(part.file.filename, store if part.field_name == "file" else skip)

    try:
        form = await Form(http.headers, bounded(http, MAX_FILE_BYTES, held)).parse()
    except (MultiPartException, KeyError) as error:
        message = error.message if isinstance(error, MultiPartException) else "it has no boundary"
        raise ApiError(400, f"cannot read the form: {message}", code="invalid_type") from None
    purpose, files = form.get("purpose"), [file for file in form.getlist("file") if isinstance(file, UploadFile)]
    if purpose != "batch":
        raise ApiError(400, "purpose must be 'batch'", param="purpose", code="unsupported_value")
    if not files:
        raise ApiError(400, "file is required", param="file", code="missing_required_parameter")
    if len(files) > 1:
        raise ApiError(400, "file must be one file", param="file", code="invalid_value")
    # a charset such as UTF-7 can decode to half of a surrogate pair, which cannot be stored
    filename = (files[0].filename or "file").encode("utf-8", "replace").decode()
    return filename, [name for name in form if name not in {"file", "purpose"}]


class _PassedFile(UploadFile):
    """A file of a form that is passed on and not kept."""

    def __init__(self, filename: str | None, write: Callable[[bytes], Awaitable[None]]) -> None:
        super().__init__(io.BytesIO(), filename=filename)
        self._write = write

    async def write(self, data: bytes) -> None:
        await self._write(data)

    async def seek(self, offset: int) -> None:
        """Nothing is kept."""
