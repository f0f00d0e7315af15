"""What gateways keep on the bus for one another and for their next start."""

import enum

import msgspec


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Gateway -> gateways: the body that an Idempotency-Key came with first.

    KV bucket: claims, key = the id of the request that the Idempotency-Key names. Gone when its outcome is.
    """

    fingerprint: str  # of path and body


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file beside its content; the description of an object in the object store `files`."""

    owner: str  # the API key's id; empty where none was asked for
    filename: str
    purpose: str
    created_s: int  # Unix time, seconds, as all times


class BatchStatus(enum.StrEnum):
    """OpenAI's words."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"  # the input file is wrong; `errors` says where
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    line: int | None = None  # of the input file, from 1
    code: str = "invalid_request"


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Gateway -> gateways: the state of a batch. KV bucket: batches, key = batch_id. Its id on the stream BATCHES is
    the work: whichever gateway takes it runs the batch, and acknowledges when it has ended.

    Each line is the request `<batch_id>-<line>`, so a batch that is taken up again finds what has ended already.
    """

    batch_id: str
    owner: str  # the API key's id
    endpoint: str
    input_file_id: str
    created_s: int
    expires_s: int
    status: BatchStatus = BatchStatus.VALIDATING
    metadata: dict[str, str] = {}
    total: int = 0
    completed: int = 0
    failed: int = 0
    began_s: int | None = None
    finalizing_s: int | None = None
    cancelling_s: int | None = None
    ended_s: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[BatchError] = []

    @property
    def ended(self) -> bool:
        return self.ended_s is not None


class BatchWork(msgspec.Struct, frozen=True, kw_only=True):
    """Gateway -> gateways: run this batch. Subject: dilaserve.<cell>.batches. Stream: BATCHES (file, work queue)."""

    batch_id: str
