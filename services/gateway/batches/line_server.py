"""Serves single lines of one batch as requests at low priority."""

import asyncio
import time
from dataclasses import dataclass

from msgspec.structs import replace
from starlette.datastructures import Headers

from services.gateway.api.errors import ApiError, as_api_error, check_completed, log_internal_error
from services.gateway.api.replies import CompletionReplies, Json
from services.gateway.api.request_body import MAX_BODY_BYTES, too_large
from services.gateway.api.request_builder import build_request, echoed_prompt, outcome_without_steps
from services.gateway.api.serving_fields import with_serving_fields
from services.gateway.api.text_forms import field_of_form
from services.gateway.app_context import AppContext
from services.gateway.batches.batch_lines import BODIES, Line, LineResult
from services.gateway.inflight import BATCH_OWNER
from shared.messages.gateway import Batch
from shared.retry import retry

MAX_PRIORITY = -50  # of a line, below that of interactive requests
RETRY_S = 1.0  # first wait before a line is sent again
INVALID_LINE_PAUSE_S = 0.005  # yields the event loop, as an invalid line is read without waiting


@dataclass(slots=True)
class LineServer:
    _context: AppContext
    _batch: Batch
    _invalid_line_lock: asyncio.Lock  # of all batches: the gateway reads one invalid line per INVALID_LINE_PAUSE_S
    cancel_requests: bool = False  # whether `serve`, when cancelled, also cancels its request

    async def serve(self, number: int, line: Line) -> LineResult:
        """Serve one line, repeating it while the bus or the instances are unavailable."""
        request_id = f"{self._batch.batch_id}-{number}"
        reply: Json | ApiError
        try:
            reply = await retry(lambda: self._reply(line, request_id), wait_initial_s=RETRY_S)
        except Exception as error:
            log_internal_error(error, request_id)
            async with self._invalid_line_lock:
                await asyncio.sleep(INVALID_LINE_PAUSE_S)
            reply = as_api_error(error)
        return LineResult(number, line, request_id, reply)

    async def _reply(self, line: Line, request_id: str) -> Json:
        """Raises: any error of the line; ApiError if the request is not completed; RetryLater."""
        if len(bytes(line.body)) > MAX_BODY_BYTES:
            raise too_large(MAX_BODY_BYTES)
        sent = BODIES[self._batch.endpoint].model_validate_json(bytes(line.body))
        body = with_serving_fields(sent, Headers(), self._context.tables)
        model = self._context.cells_of(body.model)
        text = model.text
        if len(body.single_bodies()) > 1:
            raise ApiError(400, "a line of a batch has one prompt and n: 1", param="n", code="unsupported_value")
        echoes = [echoed_prompt(body, text)]
        if body.max_tokens == 0:
            alone = await outcome_without_steps(body, text, request_id)
            return CompletionReplies(body, request_id, alone.arrival_s, echoes, text).whole([alone])
        start_s, left_s = time.perf_counter(), max(1.0, self._batch.expires_s - self._context.batches.now_s())
        request = await build_request(body, text, request_id, self._batch.owner)
        priority, slo_s = min(request.priority, MAX_PRIORITY), request.slo_s or left_s
        request = replace(request, stream=False, guesses=False, priority=priority, slo_s=slo_s)
        cell, confirm = await model.claimed_line(request_id)
        cell.readiness.check_storage()
        inflight = await cell.inflight.open(request, BATCH_OWNER, start_s, confirm=confirm, timeout_s=left_s)
        try:
            outcome = await inflight.outcome()
        finally:
            inflight.cancel_on_close |= self.cancel_requests
            inflight.close()
        check_completed(outcome, field_of_form(body))
        return CompletionReplies(body, request_id, outcome.arrival_s, echoes, text).whole([outcome])
