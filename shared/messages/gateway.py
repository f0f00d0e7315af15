"""State that gateways share over the bus: claims, files, batches."""

import enum
from typing import Annotated

import msgspec

from shared.messages.numbers import Finite
from shared.messages.requests import ChatMessage


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Gateway -> gateways, scheduler: the body of the first request with an Idempotency-Key, and its cell.

    KV bucket: claims of the model's first cell; also of the request's own cell, once its bus has stored the request.
    Key = the request id derived from the Idempotency-Key, or of a batch's line. Kept as long as the outcome.
    """

    fingerprint: str  # hash of path and body; empty: of the line of a batch
    cell: str = ""  # the cell that has the request; empty: the first one of the model
    is_stored: bool = False  # whether the bus of that cell has stored the request; an earlier version does not set it


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Gateway -> gateways: the input of a stored response, with the messages before it and without instructions.

    KV bucket: conversations of the model's first cell, key = the response's request id. Kept as long as the outcome,
    which has the text.
    """

    owner: str  # the API key's id; empty without `auth`
    messages: list[ChatMessage]
    cell: str = ""  # the cell that has the outcome; empty: the first one of the model


class KeyRate(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of an API key that has a limit per minute."""

    key: str  # the key's id
    per_minute: Annotated[int, msgspec.Meta(ge=1)]
    allowed: Annotated[int, msgspec.Meta(ge=0)] = 0  # since the gateway's last message
    due_s: Finite = 0.0  # Unix time at which all counted requests are due at this rate


class GatewayUse(msgspec.Struct, frozen=True, kw_only=True):
    """Gateway -> gateways: its use of API keys that have limits. Subject: dilaserve.<cell>.key-use. Core NATS."""

    gateway: str
    rates: list[KeyRate] = []
    in_flight: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}  # requests of each key


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a file: the description of its object in the object store `files`."""

    owner: str  # the API key's id; empty without `auth`
    filename: str
    purpose: str
    created_s: int  # Unix time, seconds, like all times here; those of batches are by the bus's clock


class BatchStatus(enum.StrEnum):
    """The states of OpenAI's batch API."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"  # the input file is invalid; see `errors`
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    line: int | None = None  # line of the input file, from 1
    code: str = "invalid_request"


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Gateway -> gateways: the state of a batch. KV bucket: batches, key = batch_id.

    The gateway that receives the batch's id from the stream BATCHES runs it, and acknowledges when it has ended. Line n
    is the request `<batch_id>-<n>`, so that a gateway that takes over a batch finds the finished lines.
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
