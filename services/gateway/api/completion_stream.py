"""The streamed reply to a completion: chunks of committed text, in order, and canvas events."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress

import msgspec
import numpy as np
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from services.gateway.api.errors import as_api_error, log_internal_error
from services.gateway.api.replies_and_chunks import Json, StreamedReplies
from services.gateway.api.text_stream import Decode, TextStream
from services.gateway.api.token_logprobs import TokenLogprob, TokenLogprobs
from services.gateway.errors import check_completed
from services.gateway.inflight import InFlightRequest, StepTokens
from services.gateway.metrics import RequestRecorder
from shared.arrays import unpack_int32
from shared.messages.requests import Outcome, Request
from shared.pinned import FREE
from shared.tasks import during, run_together
from shared.text import TextModel
from shared.top_tokens import TopTokenTable

NO_CACHE = {"Cache-Control": "no-cache"}  # the header of every stream


class StreamedLogprobs(TokenLogprobs):
    """Those of a text whose tokens arrive in any order."""

    def __init__(self, model: TextModel, request: Request) -> None:
        length, alternatives = request.output_tokens, request.top_logprobs
        super().__init__(model, alternatives)
        self._confidences = np.full(length, np.nan, dtype=np.float32)
        self._top = TopTokenTable.unknown(length, alternatives) if alternatives else None

    def receive(self, step: StepTokens, text: TextStream) -> None:
        """`text` has read the step's tokens. A known position keeps its first confidence, as its token."""
        new = np.isnan(self._confidences[step.positions])
        self._confidences[step.positions[new]] = step.confidences[new]
        if self._top is not None and step.top_tokens is not None:
            with suppress(ValueError):  # damaged: these positions have no alternatives
                self._top.write(step.top_tokens)
        first, tokens = self.received, text.tokens_from(self.received)
        self.add(tokens, self._confidences[first : first + len(tokens)], self._top)


class StreamedChoice:
    """One choice: its request, and the text and the guesses so far."""

    def __init__(
        self, index: int, inflight: InFlightRequest, model: TextModel, recorder: RequestRecorder, form_field: str
    ) -> None:
        """`form_field`: as in check_completed."""
        self.index, self.inflight, self.recorder, self.form_field = index, inflight, recorder, form_field
        self.request = request = inflight.request
        self.text, self.decode = TextStream(model, request), model.decode
        self.prompt_tokens = inflight.prompt_tokens + model.given_tokens(request)  # with the pinned ones
        self.logprobs = StreamedLogprobs(model, request) if request.logprobs else None  # None: its client wants none
        self.guessed: StepTokens | None = None
        self.outcome: Outcome | None = None
        self.canvas_began = False  # whether a canvas event is sent
        self.drafts: dict[int, int] = {}  # by position, the tokens that may still change


class CompletionStream(EventSourceResponse):
    """Follows the requests of all choices to their outcomes, then closes them, also if the client leaves earlier."""

    def __init__(self, choices: Sequence[StreamedChoice], replies: StreamedReplies, headers: dict[str, str]) -> None:
        self._choices, self._replies = choices, replies
        super().__init__(self._data(), headers=NO_CACHE | headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            for choice in self._choices:
                choice.inflight.close()
                choice.recorder.not_completed("left")

    async def _data(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._chunks():
                yield dump(chunk)
        except Exception as error:  # the status line is sent, so the error is the last event
            log_internal_error(error, self._choices[0].request.request_id)
            reply = as_api_error(error)
            for choice in self._choices:
                choice.recorder.not_completed(reply.code or "failed")
            for chunk in self._replies.failed(reply):
                yield dump(chunk)
        else:
            if self._replies.ends_with_done:
                yield format_sse_event(data_str="[DONE]")

    async def _chunks(self) -> AsyncIterator[Json]:
        """Raises: ApiError if a request is not completed, or its text contradicts the chunks already sent."""
        for choice in self._choices:
            for chunk in self._replies.opening(choice.index, choice.prompt_tokens):
                yield chunk
        async for choice, event in _merged(self._choices):
            for chunk in self._apply(choice, event):
                yield chunk
        for chunk in self._replies.last([choice.outcome for choice in self._choices if choice.outcome is not None]):
            yield chunk

    def _apply(self, choice: StreamedChoice, event: StepTokens | Outcome) -> Iterator[Json]:
        tokens: list[TokenLogprob] = []
        if isinstance(event, Outcome):
            check_completed(event, choice.form_field)
            piece = choice.text.finish(event)
            tokens = choice.logprobs.finish(event) if choice.logprobs else []
        elif not event.committed:
            choice.guessed = event  # arrives before its step's committed tokens, which pass through the scheduler
            return
        else:
            piece = "" if event.is_draft else choice.text.add(event.positions, event.tokens)
            if choice.logprobs and not event.is_draft:
                choice.logprobs.receive(event, choice.text)
                tokens = choice.logprobs.take(len(choice.text.text))
            if choice.request.guesses:
                index = {"index": choice.index} if len(self._choices) > 1 else {}
                yield _canvas(event, choice) | index
                choice.canvas_began = True
        if piece:
            choice.recorder.text_sent()
        if piece or tokens:
            used = choice.prompt_tokens, choice.text.tokens_read
            yield from self._replies.text(choice.index, piece, used, tokens)
        if isinstance(event, Outcome):
            choice.outcome = event
            choice.recorder.completed(event)
            yield from self._replies.ending(choice.index, event)


async def _merged(choices: Sequence[StreamedChoice]) -> AsyncIterator[tuple[StreamedChoice, StepTokens | Outcome]]:
    """The events of all choices, as they arrive. Raises: as `InFlightRequest.events`."""
    if len(choices) == 1:
        async for event in choices[0].inflight.events():
            yield choices[0], event
        return
    arrived: asyncio.Queue[tuple[StreamedChoice, StepTokens | Outcome] | None] = asyncio.Queue()

    async def follow(choice: StreamedChoice) -> None:
        async for event in choice.inflight.events():
            arrived.put_nowait((choice, event))

    async def follow_all() -> None:
        try:
            await run_together(map(follow, choices))
        finally:
            arrived.put_nowait(None)

    async with during(follow_all()):
        while (pair := await arrived.get()) is not None:
            yield pair


def _canvas(committed: StepTokens, choice: StreamedChoice) -> Json:
    """The tokens that a step committed or wrote as drafts, and its guesses for masked positions unless they are of
    another step. The first event has the pinned tokens, too, and the lengths of the canvas and of its blocks."""
    first, cells = Json(), list[Json]()
    if not choice.canvas_began:
        first = {"tokens": choice.request.output_tokens, "block_length": choice.request.block_length}
        pinned, mark = unpack_int32(choice.request.pinned).tolist(), {"committed": True, "pinned": True}
        known = [(at, token, choice.decode([token])) for at, token in enumerate(pinned) if token != FREE]
        cells = [{"position": at, "token": token, "text": text, "confidence": 1.0, **mark} for at, token, text in known]
    cells += _written_cells(committed, choice)
    guessed = choice.guessed
    if guessed is not None and guessed.step == committed.step:
        cells += _cells(guessed, choice.decode)
    return {"object": "dilaserve.canvas", "step": committed.step, **first, "cells": cells}


def _written_cells(written: StepTokens, choice: StreamedChoice) -> list[Json]:
    """As `_cells`, those of drafts marked; one that changes a draft has the text that it replaces."""
    cells = _cells(written, choice.decode)
    for cell in cells:
        position: int = cell["position"]
        token: int = cell["token"]
        before = choice.drafts.get(position, token)
        if written.is_draft:
            choice.drafts[position] = token
            cell |= {"committed": False, "draft": True}
        if before != token:
            cell["replaces"] = choice.decode([before])
    return cells


def _cells(tokens: StepTokens, decode: Decode) -> list[Json]:
    """Each token with its own text: empty for special tokens, U+FFFD for a part of a character."""
    committed, columns = tokens.committed, (tokens.positions, tokens.tokens, tokens.confidences)
    return [
        {"position": position, "token": token, "text": decode([token]), "confidence": value, "committed": committed}
        for position, token, value in zip(*(column.tolist() for column in columns), strict=True)
    ]


def dump(content: Json) -> bytes:
    """The event with this content; its type is the content's `type`, if it has one."""
    return format_sse_event(data_str=msgspec.json.encode(content).decode(), event=content.get("type"))
