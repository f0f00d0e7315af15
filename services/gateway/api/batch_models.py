"""The bodies and the replies of /v1/batches and /v1/files."""

from typing import Literal

from pydantic import Field

from services.gateway.api.base_models import Lenient
from services.gateway.api.request_models import Metadata
from services.gateway.view_models import List, Page, ResponseModel
from shared.messages.gateway import BatchStatus


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
