"""/v1/files and /v1/batches, OpenAI's batch API: the bodies, uploads, replies and routes."""

import io
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from services.gateway.admission.admission import key_of
from services.gateway.api.app_context import AppContext
from services.gateway.api.base_models import Lenient
from services.gateway.api.field_types import Metadata
from services.gateway.api.openapi import FILE_FORM, json_body
from services.gateway.api.other_fields import ignored_header
from services.gateway.api.request_body import BodyBudget, bounded, check_content_type, read_body
from services.gateway.api.routes.requests import page_after
from services.gateway.errors import ApiError
from services.gateway.stores.file_store import MAX_FILE_BYTES, FileObject
from services.gateway.view_models import List, Page, ResponseModel
from shared.api_keys import ApiKey
from shared.messages.gateway import Batch, BatchStatus

Write = Callable[[bytes], Awaitable[int]]  # returns the number of bytes that are no longer in memory


async def read_upload(http: Request, budget: BodyBudget, write: Write) -> tuple[str, list[str]]:
    """Pass the form's file to `write`.

    Returns: the file's name, and the names of the form's other fields. Raises: ApiError naming the wrong field; errors
    of `bounded`.
    """
    with budget.body() as held:
        passed = partial(_PassedFile, partial(budget.hold, held), write)
        form = await _read(http, bounded(http, MAX_FILE_BYTES, budget, held), passed)
    purpose, files = form.get("purpose"), [file for file in form.getlist("file") if isinstance(file, UploadFile)]
    if purpose != "batch":
        raise ApiError(400, "purpose must be 'batch'", param="purpose", code="unsupported_value")
    if len(files) != 1:
        code = "invalid_value" if files else "missing_required_parameter"
        raise ApiError(400, "the form needs one part named file", param="file", code=code)
    # a charset such as UTF-7 can decode to half of a surrogate pair, which cannot be stored
    filename = (files[0].filename or "file").encode("utf-8", "replace").decode()
    return filename, [name for name in form if name not in {"file", "purpose"}]


async def _read(http: Request, parts: AsyncGenerator[bytes], passed: Callable[..., UploadFile]) -> FormData:
    """`passed`: makes a file, by its name and whether it is the wanted one. Raises: ApiError if the form is invalid."""

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
                part.file = passed(filename, is_wanted)

    try:
        return await Form(http.headers, parts).parse()
    except (MultiPartException, UnicodeError) as error:
        message = error.message if isinstance(error, MultiPartException) else "its charset does not have its names"
        raise ApiError(400, f"cannot read the form: {message}", code="invalid_type") from None


class _PassedFile(UploadFile):
    """A file of a form that is passed on, if it is the wanted one, and not kept."""

    def __init__(self, hold: Callable[[int], None], write: Write, filename: str | None, is_wanted: bool) -> None:
        super().__init__(io.BytesIO(), filename=filename)
        self._hold, self._write, self._is_wanted = hold, write, is_wanted

    async def write(self, data: bytes) -> None:
        self._hold(-await self._write(data) if self._is_wanted else -len(data))

    async def seek(self, offset: int) -> None:
        """Nothing is kept."""


Limit = Annotated[int, Query(ge=1, le=100)]
FileLimit = Annotated[int, Query(ge=1, le=10_000)]


class BatchBody(Lenient):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None


class DeletedFile(ResponseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class BatchErrorItem(ResponseModel):
    code: str
    message: str
    line: int | None
    param: None = None


class BatchCounts(ResponseModel):
    total: int
    completed: int
    failed: int


class BatchObject(ResponseModel):
    """A batch. Times are Unix times in seconds."""

    id: str = Field(validation_alias="batch_id")
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: List[BatchErrorItem] | None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int = Field(validation_alias="created_s")
    in_progress_at: int | None = Field(validation_alias="began_s")
    expires_at: int = Field(validation_alias="expires_s")
    finalizing_at: int | None = Field(validation_alias="finalizing_s")
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = Field(validation_alias="cancelling_s")
    cancelled_at: int | None = None
    request_counts: BatchCounts
    metadata: dict[str, str]


class BatchList(Page[BatchObject]):
    first_id: str | None = None
    last_id: str | None = None


def file_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/files")

    @router.post("", openapi_extra=FILE_FORM)
    async def add_file(http: Request, response: Response) -> FileObject:
        """Upload a file of requests, one per line. It is kept for 30 days."""
        context.admission.check_rate(key_of(http))
        check_content_type(http, "multipart/form-data")
        async with context.files.uploading(key_of(http).key_id) as upload:
            filename, ignored = await read_upload(http, context.bodies, partial(context.files.write, upload))
            response.headers.update(ignored_header(None, ignored))
            return await context.files.finish(upload, filename)

    @router.get("")
    async def list_files(
        http: Request,
        limit: FileLimit = 10_000,
        after: str | None = None,
        purpose: str | None = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> Page[FileObject]:
        """The API key's files, newest first or by `order`; `after` is the id of the last file of the previous page."""
        owned = await context.files.owned_by(key_of(http).key_id)
        files = [file for file in owned if purpose in (None, file.purpose)]
        if order == "asc":
            files.reverse()
        page, has_more = page_after(files, after, limit, attrgetter("id"))
        return Page(data=page, has_more=has_more)

    @router.get("/{file_id}")
    async def get_file(http: Request, file_id: str) -> FileObject:
        """A file's metadata."""
        return await context.files.get(file_id, key_of(http).key_id)

    @router.get(
        "/{file_id}/content",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}, "description": "The file's content."}},
    )
    async def get_content(http: Request, file_id: str) -> Response:
        """A file's content."""
        size, chunks = await context.files.content(file_id, key_of(http).key_id)
        return StreamingResponse(chunks, media_type="application/octet-stream", headers={"Content-Length": str(size)})

    @router.delete("/{file_id}")
    async def delete_file(http: Request, file_id: str) -> DeletedFile:
        """Delete a file that no unfinished batch reads."""
        owner = key_of(http).key_id
        await context.batches.check_unread(file_id, owner)
        await context.files.delete(file_id, owner)
        return DeletedFile(id=file_id)

    return router


def batch_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/batches")

    @router.post("", openapi_extra=json_body(BatchBody))
    async def add_batch(http: Request, response: Response) -> BatchObject:
        """Serve every line of a file within a day, at low priority."""
        context.admission.check_rate(key_of(http))
        owner = key_of(http).key_id
        async with read_body(http, BatchBody, context.bodies) as body:
            response.headers.update(ignored_header(body))
            await context.files.get(body.input_file_id, owner, "input_file_id")
            batch = await context.batches.create(owner, body.endpoint, body.input_file_id, body.metadata or {})
        return batch_object(batch)

    @router.get("")
    async def list_batches(http: Request, limit: Limit = 20, after: str | None = None) -> BatchList:
        """The API key's batches, newest first, with an operator's key those of all keys; `after` is the id of the
        last batch of the previous page."""
        batches = [batch_object(batch) for batch in await context.batches.owned_by(_seen_by(key_of(http)))]
        page, has_more = page_after(batches, after, limit, attrgetter("id"))
        first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
        return BatchList(data=page, first_id=first_id, last_id=last_id, has_more=has_more)

    @router.get("/{batch_id}")
    async def get_batch(http: Request, batch_id: str) -> BatchObject:
        """A batch's progress and, once it has ended, its files."""
        return batch_object(await context.batches.get(batch_id, _seen_by(key_of(http))))

    @router.post("/{batch_id}/cancel")
    async def cancel_batch(http: Request, batch_id: str) -> BatchObject:
        """Cancel a batch. Its files hold the lines served so far."""
        return batch_object(await context.batches.cancel(batch_id, key_of(http).key_id))

    return router


def _seen_by(key: ApiKey) -> str | None:
    """The owner whose batches the key may see; None: any."""
    return None if key.operator else key.key_id


def batch_object(batch: Batch) -> BatchObject:
    fields = msgspec.structs.asdict(batch)
    fields |= {
        "errors": {"data": msgspec.to_builtins(batch.errors)} if batch.errors else None,
        "request_counts": fields,
        f"{batch.status.value}_at": batch.ended_s,  # such as completed_at
    }
    return BatchObject.model_validate(fields)
