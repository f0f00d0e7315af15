"""Serves single lines of one batch as requests at low priority."""

import asyncio
import dataclasses
import time
from dataclasses import dataclass

from msgspec.structs import replace
from pydantic import ValidationError
from starlette.datastructures import Headers

from services.gateway.api.app_context import AppContext
from services.gateway.api.errors import as_api_error, log_internal_error
from services.gateway.api.plan import BodyPlan
from services.gateway.api.replies_and_chunks import Json
from services.gateway.api.request_body import MAX_BODY_BYTES, too_large
from services.gateway.batches.batch_lines import BODIES, Line, LineResult
from services.gateway.errors import ApiError, check_completed
from services.gateway.inflight import BATCH_OWNER
from services.gateway.model_cells import ModelCells
from shared.api_keys import ANONYMOUS
from shared.errors import BadInput
from shared.messages.gateway import Batch
from shared.messages.requests import Outcome, OutcomeStatus, Request
from shared.retry import retry

MAX_PRIORITY = -50  # of a line, below that of interactive requests
RETRY_S = 1.0  # first wait before a line is sent again
INVALID_LINE_PAUSE_S = 0.005  # yields the event loop, as an invalid line is read without waiting


class _NotSent(Exception):  # noqa: N818
    """The line of a stopped batch has no outcome."""


@dataclass(slots=True)
class LineServer:
    _context: AppContext
    _batch: Batch
    _invalid_line_lock: asyncio.Lock  # of all batches: the gateway reads one invalid line per INVALID_LINE_PAUSE_S
    is_stopped: bool  # whether no line is sent any more: only those of an earlier gateway have results
    _handled: int  # lines of an earlier gateway, at most: the first ones
    cancel_requests: bool = False  # whether `serve`, when cancelled, also cancels its request

    async def serve(self, number: int, line: Line) -> LineResult | None:
        """Serve one line, repeating it while the bus or the instances are unavailable. Returns: None if it is stopped
        and the line has no outcome."""
        request_id = f"{self._batch.batch_id}-{number}"
        reply: Json | ApiError
        try:
            async with self._context.bodies.room(len(bytes(line.body))):
                reply = await retry(lambda: self._reply(number, line, request_id), wait_initial_s=RETRY_S)
        except _NotSent:
            return None
        except Exception as error:
            log_internal_error(error, request_id)
            async with self._invalid_line_lock:
                await asyncio.sleep(INVALID_LINE_PAUSE_S)
            reply = as_api_error(error)
        return LineResult(number, line, request_id, reply)

    async def _reply(self, number: int, line: Line, request_id: str) -> Json:
        """Raises: any error of the line; ApiError if the request is not completed; _NotSent; RetryLater."""
        start_s, left_s = time.perf_counter(), max(1.0, self._batch.expires_s - self._context.batches.now_s())
        try:
            model, plan = await self._plan(line)
        except (ApiError, BadInput, ValidationError):
            if not self.is_stopped or number < self._handled:
                raise
            await asyncio.sleep(0)  # a stopped batch may have many such lines
            raise _NotSent from None
        [request], ends = plan.requests, plan.outcomes
        replies, form_field = plan.wanted.replies(request_id, 0.0), plan.wanted.form_field
        del plan  # it may take much memory, and the request much time
        if ends:
            outcome = replace(ends[0], request_id=request_id)
        else:
            priority, slo_s = min(request.priority, MAX_PRIORITY), request.slo_s or left_s
            own = {"request_id": request_id, "priority": priority, "slo_s": slo_s}
            outcome = await self._outcome(model, replace(request, stream=False, guesses=False, **own), start_s, left_s)
        check_completed(outcome, form_field)
        return replies.whole([outcome]) | {"created": int(outcome.arrival_s)}

    async def _plan(self, line: Line) -> tuple[ModelCells, BodyPlan]:
        """The plan of the line's request, and the cells that serve its model. Raises: any error of the line."""
        if len(bytes(line.body)) > MAX_BODY_BYTES:
            raise too_large(MAX_BODY_BYTES)
        sent = BODIES[self._batch.endpoint].model_validate_json(bytes(line.body))
        owner = dataclasses.replace(ANONYMOUS, key_id=self._batch.owner)
        _, model, plan = await self._context.plan(sent, Headers(), owner)
        if len(plan.requests) > 1:
            raise ApiError(400, "a line of a batch has one prompt and n: 1", param="n", code="unsupported_value")
        return model, plan

    async def _outcome(self, model: ModelCells, request: Request, start_s: float, left_s: float) -> Outcome:
        """The outcome of the request, or of the same one that was published before. Raises: _NotSent; RetryLater."""
        cell, confirm = await model.claimed_line(request.request_id)
        if self.is_stopped:
            found = await cell.connection.bus.outcome(request.request_id)
            if found is None or not found.is_final or found.status is OutcomeStatus.CANCELLED:
                raise _NotSent
            return found
        cell.readiness.check_storage()
        inflight = await cell.inflight.open(request, BATCH_OWNER, start_s, confirm=confirm, timeout_s=left_s)
        try:
            return await inflight.outcome()
        finally:
            inflight.cancel_on_close |= self.cancel_requests
            inflight.close()
