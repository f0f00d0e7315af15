"""Prepares requests for the core: reads their earlier state, tokenizes and checks them.

Requests are prepared concurrently. One that needs no slow step overtakes those that do.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from msgspec.structs import replace
from nats.js.errors import NotFoundError

from services.scheduler.events import RequestArrived
from services.scheduler.io.recovery import Recovery
from services.scheduler.io.request_decoder import InvalidRequest, decode_request
from services.scheduler.io.waiting_requests import ReceivedRequest
from shared.arrays import INT32_BYTES, Int32
from shared.bus.client import Bus
from shared.bus.errors import bus_errors
from shared.canvases import check_for_canvases
from shared.edits import NO_EDITS, edit_threshold_for
from shared.errors import BadInput, DilaserveError
from shared.messages.requests import Request
from shared.messages.versions import VERSION, newer_field
from shared.pinned import check_pinned
from shared.retry import retry
from shared.text import TextModel
from shared.tokenizer import LONG_TEXT

T = TypeVar("T")

TRACE_HEADERS = ("traceparent", "tracestate")  # W3C trace context
MAX_READS = 64  # requests whose message is read at a time
MAX_LONG_TEXTS = 2  # long texts tokenized at a time
NO_MESSAGE = 10037  # the server's error code for a message that its stream does not hold


class RequestLost(DilaserveError):  # noqa: N818
    """The stream no longer holds the message of a waiting request."""


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """The content of a request's message."""

    request: Request
    headers: Mapping[str, str] | None


@dataclass(slots=True)
class RequestPreparer:
    _bus: Bus
    _text: TextModel
    _recovery: Recovery
    _shared_prefixes: bool
    _worker_versions: Callable[[], Iterable[int]]  # of the messages of the present instances
    _edit_threshold: float = NO_EDITS  # of requests without one
    _stop_at_eos: bool = True  # whether texts end at end tokens in this cell
    _reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_READS))
    _long_texts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_LONG_TEXTS))

    async def prepare(self, waiting: ReceivedRequest, message: RequestMessage | None) -> RequestArrived | None:
        """Without `message`, it is read from the stream. Returns: None if the request has its outcome already.

        Raises: BadInput if the model cannot serve the request; RequestLost.
        """
        delivery, arrival = waiting.delivery, waiting.arrival
        message = message or await self._read(waiting)
        check_for_canvases(message.request, self._text.card)
        edit_threshold = edit_threshold_for(message.request, self._text.card, self._edit_threshold)
        version = min(self._worker_versions(), default=VERSION)
        field = newer_field(message.request, version, has_edits=edit_threshold < NO_EDITS)
        if field is not None:
            raise BadInput(f"`{field}` needs workers of a later version: repeat the request after the upgrade", field)
        checkpoint = None
        if self._recovery.covers(delivery.sequence):
            if await self._recovery.has_outcome(arrival.request_id):
                return None
            checkpoint = await self._recovery.checkpoint(arrival.request_id)
        prompt_ids = await self._tokenize(message.request)
        block_offset, output_length = self._text.fit_output(message.request, len(prompt_ids))
        labels = message.request.choices
        if labels and not self._stop_at_eos:
            raise BadInput("choices need a cell whose texts end at end tokens: DILASERVE_STOP_AT_EOS=true", "choices")
        choices = await self._encoded(partial(self._text.encode_choices, labels), sum(map(len, labels)))
        self._text.check_choices(message.request, choices, output_length)
        return RequestArrived(
            request=replace(message.request, prompt=None, messages=None, prompt_ids=None),
            prompt_ids=prompt_ids,
            output_length=output_length,
            block_offset=block_offset,
            salt="" if self._shared_prefixes else message.request.key,
            slo_s=arrival.slo_s,
            arrival_s=arrival.arrival_s,
            delivery=delivery,
            choices=choices,
            edit_threshold=edit_threshold,
            trace={key: value for key, value in (message.headers or {}).items() if key in TRACE_HEADERS},
            checkpoint=checkpoint,
        )

    async def _read(self, waiting: ReceivedRequest) -> RequestMessage:
        """The message of a request, from the stream. Raises: BadInput if it is invalid; RequestLost."""
        stream, sequence = self._bus.subjects.stream("REQUESTS"), waiting.delivery.sequence

        async def read() -> RequestMessage:
            with bus_errors("read a request"):
                try:
                    stored = await self._bus.js.get_msg(stream, seq=sequence)
                except NotFoundError as error:
                    if error.err_code != NO_MESSAGE:
                        raise
                    raise RequestLost from error
            request = decode_request(stored.subject or "", stored.data or b"")
            if request.request_id != waiting.request_id:  # the stream was deleted, and counts from 1 again
                raise RequestLost
            if isinstance(request, InvalidRequest):
                raise request.error
            return RequestMessage(request, stored.headers)

        async with self._reads:
            return await retry(read)

    async def _tokenize(self, request: Request) -> Int32:
        """The prompt's tokens. Raises: BadInput if the model cannot serve the request."""
        self._text.check_tokens(stop_token_ids=request.stop_token_ids, logit_bias=request.logit_bias)
        if request.prompt_ids is not None:
            # First, as the other checks look at each token
            self._check_length(request, len(request.prompt_ids) // INT32_BYTES)
            return self._text.encode_request(request)
        prompt_ids = await self._encoded(partial(self._text.encode_request, request), text_length(request))
        self._check_length(request, len(prompt_ids))
        return prompt_ids

    async def _encoded(self, encode: Callable[[], T], length: int) -> T:
        """The result of `encode`; of texts with many characters, in a thread."""
        if length <= LONG_TEXT:
            return encode()
        async with self._long_texts:
            return await asyncio.to_thread(encode)

    def _check_length(self, request: Request, prompt_tokens: int) -> None:
        _, output_length = self._text.fit_output(request, prompt_tokens)
        self._text.check_length(prompt_tokens, output_length, "output_tokens")
        check_pinned(request, output_length, self._text.card)


def text_length(request: Request) -> int:
    """Characters of the prompt or messages."""
    return len(request.prompt or "") + sum(len(message.content) for message in request.messages or ())
