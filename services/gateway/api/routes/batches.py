"""/v1/files and /v1/batches: many requests from one file, as OpenAI has it."""

from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from services.gateway.admission.admission import key_of
from services.gateway.api.errors import ApiError
from services.gateway.api.openapi import FILE_FORM, json_body
from services.gateway.api.request_body import bounded, read_body
from services.gateway.api.request_models import BatchBody
from services.gateway.api.response_models import (
    BatchCounts,
    BatchErrors,
    BatchFault,
    BatchList,
    BatchObject,
    Deleted,
    FileList,
    FileObject,
)
from services.gateway.app_context import AppContext
from services.gateway.batches.file_store import MAX_FILE_BYTES
from shared.messages.gateway import Batch, BatchStatus

L = TypeVar("L", FileObject, BatchObject)
Limit = Annotated[int, Query(ge=1, le=100)]


def file_routes(parts: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/files")

    @router.post("", openapi_extra=FILE_FORM)
    async def add_file(http: Request) -> FileObject:
        """A file of requests, one a line; kept for 30 days."""
        filename, content = await _uploaded(http)
        return await parts.files.add(content, filename, "batch", key_of(http).key_id)

    @router.get("")
    async def list_files(
        http: Request,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        after: str | None = None,
        purpose: str | None = None,
    ) -> FileList:
        """This key's files, the latest first; with `after` those that follow that one."""
        found = await parts.files.of(key_of(http).key_id)
        rest = _following(found, after)
        chosen = [file for file in rest if purpose in (None, file.purpose)]
        return FileList(data=chosen[:limit], has_more=len(chosen) > limit)

    @router.get("/{file_id}")
    async def get_file(http: Request, file_id: str) -> FileObject:
        """What is known of a file."""
        return await parts.files.about(file_id, key_of(http).key_id)

    @router.get(
        "/{file_id}/content",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}, "description": "the file as it is"}},
    )
    async def get_content(http: Request, file_id: str) -> Response:
        """The file itself."""
        content = await parts.files.content(file_id, key_of(http).key_id)
        return Response(content, media_type="application/octet-stream")

    @router.delete("/{file_id}")
    async def delete_file(http: Request, file_id: str) -> Deleted:
        """Forget a file."""
        await parts.files.delete(file_id, key_of(http).key_id)
        return Deleted(id=file_id)

    return router


def batch_routes(parts: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/batches")

    @router.post("", openapi_extra=json_body(BatchBody))
    async def add_batch(http: Request) -> BatchObject:
        """Serve every line of a file, at low priority, within a day."""
        owner, body = key_of(http).key_id, await read_body(http, BatchBody)
        await parts.files.about(body.input_file_id, owner)
        return shown(await parts.batches.add(owner, body.endpoint, body.input_file_id, body.metadata or {}))

    @router.get("")
    async def list_batches(http: Request, limit: Limit = 20, after: str | None = None) -> BatchList:
        """This key's batches, the latest first; with `after` those that follow that one."""
        found = await parts.batches.of(key_of(http).key_id)
        rest = _following([shown(batch) for batch in found], after)
        page = rest[:limit]
        return BatchList(
            data=page,
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
            has_more=len(rest) > limit,
        )

    @router.get("/{batch_id}")
    async def get_batch(http: Request, batch_id: str) -> BatchObject:
        """How far a batch is, and its files once it has ended."""
        return shown(await parts.batches.get(batch_id, key_of(http).key_id))

    @router.post("/{batch_id}/cancel")
    async def cancel_batch(http: Request, batch_id: str) -> BatchObject:
        """Stop a batch; what has ended is in its files."""
        return shown(await parts.batches.cancel(batch_id, key_of(http).key_id))

    return router


def _following(found: list[L], after: str | None) -> list[L]:
    """What comes behind the one with the id `after`, all without it. Raises: ApiError 404 if there is none such."""
    if after is None:
        return found
    at = next((at for at, item in enumerate(found) if item.id == after), None)
    if at is None:
        raise ApiError(404, f"nothing has the id {after[:100]!r}", param="after", code="not_found")
    return found[at + 1 :]


async def _uploaded(http: Request) -> tuple[str, bytes]:
    """Name and content of the form's file. Raises: ApiError naming the field at fault."""
    if not http.headers.get("content-type", "").startswith("multipart/form-data"):
        raise ApiError(400, "the body must be a multipart/form-data form", code="invalid_type")
    try:
        form = await MultiPartParser(http.headers, bounded(http, MAX_FILE_BYTES)).parse()
    except (MultiPartException, KeyError) as error:
        message = error.message if isinstance(error, MultiPartException) else "it has no boundary"
        raise ApiError(400, f"the form cannot be read: {message}", code="invalid_type") from None
    try:
        file, purpose = form.get("file"), form.get("purpose")
        if purpose != "batch":
            raise ApiError(400, "purpose must be 'batch'", param="purpose", code="unsupported_value")
        if not isinstance(file, UploadFile):
            raise ApiError(400, "file is required", param="file", code="missing_required_parameter")
        return file.filename or "file", await file.read()
    finally:
        await form.close()


def shown(batch: Batch) -> BatchObject:
    def ended_as(status: BatchStatus) -> int | None:
        return batch.ended_s if batch.status is status else None

    faults = [BatchFault(code=error.code, message=error.message, line=error.line) for error in batch.errors]
    return BatchObject(
        id=batch.batch_id,
        endpoint=batch.endpoint,
        errors=BatchErrors(data=faults) if faults else None,
        input_file_id=batch.input_file_id,
        completion_window="24h",
        status=batch.status,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=batch.created_s,
        in_progress_at=batch.began_s,
        expires_at=batch.expires_s,
        finalizing_at=batch.finalizing_s,
        completed_at=ended_as(BatchStatus.COMPLETED),
        failed_at=ended_as(BatchStatus.FAILED),
        expired_at=ended_as(BatchStatus.EXPIRED),
        cancelling_at=batch.cancelling_s,
        cancelled_at=ended_as(BatchStatus.CANCELLED),
        request_counts=BatchCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        metadata=batch.metadata,
    )
