"""A small scheduler for tests of the gateway: it receives requests from the real bus and answers with a given text.

Each step unmasks TOKENS_PER_STEP tokens of the answer, from the last to the first.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from nats.aio.msg import Msg

from shared.arrays import Float64, Int32, Int64, pack_float32, pack_int32, unpack_int32
from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.bus.errors import BUS_ERRORS
from shared.bus.subjects import name_in, request_consumer
from shared.messages.instances import Instance, InstanceState
from shared.messages.requests import (
    ActiveRequest,
    Guesses,
    Outcome,
    OutcomeError,
    OutcomeStatus,
    Progress,
    Request,
    TopTokens,
    UnfinishedQuery,
    UnfinishedRequests,
)
from shared.messages.stats import SchedulerStats
from shared.pinned import free_positions
from shared.tasks import during
from shared.text import TextModel
from tests.builders import scheduler_stats, serving_stats

TOKENS_PER_STEP = 3
GUESS_CONFIDENCE = pack_float32([0.25])
HEARTBEAT_S = 0.05
RECEIVED_S = 10.0  # time limit of each wait for a request
ANSWER = "The answer is 29."
INSTANCE = "worker-test"


def confidences_of(positions: Int64) -> Float64:
    """The confidence of the token at each position. Shapes: [n] -> [n]."""
    confidences: Float64 = 0.5 + positions % 8 / 16  # exact in float32
    return confidences


def top_tokens_of(request: Request, output_ids: Int32, positions: Int64) -> TopTokens | None:
    """The i-th alternative of a token t with probability p: t + i, p / 2^i. None if the client wants none."""
    if not request.top_logprobs:
        return None
    others = np.arange(request.top_logprobs)
    return TopTokens(
        positions=pack_int32(positions),
        tokens=pack_int32(output_ids[positions, None] + others),
        confidences=pack_float32(confidences_of(positions)[:, None] / 2.0**others),
    )


def progress_of(
    request: Request, output_ids: Int32, positions: Int64, step: int, *, is_draft: bool = False
) -> Progress:
    return Progress(
        step=step,
        positions=pack_int32(positions),
        tokens=pack_int32(output_ids[positions] + is_draft),
        confidences=pack_float32(confidences_of(positions)),
        top_tokens=top_tokens_of(request, output_ids, positions),
        is_draft=is_draft,
    )


def shares_of(labels: Sequence[str]) -> dict[str, float]:
    """Of each label half of the rest, and of the last all of it."""
    return {label: 0.5 ** min(i + 1, len(labels) - 1) for i, label in enumerate(labels)}


def active(request: Request) -> ActiveRequest:
    """The state of a request whose first step has run; it arrived at 1 s."""
    return ActiveRequest(
        is_known=True,
        request_id=request.request_id,
        key=request.key,
        arrival_s=1.0,
        slo_s=request.slo_s or 5.0,
        priority=request.priority,
        output_tokens=request.output_tokens,
        unmasked_tokens=TOKENS_PER_STEP,
        instance=INSTANCE,
        steps=1,
        mean_threshold=0.9,
    )


@dataclass
class AnsweringScheduler:
    """Answers every request with `answer(request)`; `hold`, if given, delays outcomes until it is set."""

    bus: Bus
    text: TextModel
    answer: Callable[[Request], str] = lambda _: ANSWER
    status: OutcomeStatus = OutcomeStatus.COMPLETED
    losses: int = 0  # how many of the next requests the bus loses
    error_field: str = "messages"  # of outcomes with another status
    hold: asyncio.Event | None = None
    lists_all: bool = True  # False: as if it had more unfinished requests than it may list
    drafts: bool = False  # as with edits: all steps send drafts, of other tokens, but for one more that sends all
    instance_state: InstanceState = InstanceState.READY
    stats: SchedulerStats = field(default_factory=scheduler_stats)
    requests: list[Request] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)  # ids of those with an outcome
    served: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)  # ids, before their outcome is stored
    cancelled: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)

    def reset(self) -> None:
        """Forget all requests, and answer again as by default."""
        if self.hold is not None:
            self.hold.set()
        vars(self).update(vars(AnsweringScheduler(self.bus, self.text)))

    async def received(self) -> str:
        """The id of the next request, once its steps are done. Raises: TimeoutError after RECEIVED_S."""
        async with asyncio.timeout(RECEIVED_S):
            return await self.served.get()

    @contextlib.asynccontextmanager
    async def withholding(self, request: Coroutine[Any, Any, httpx.Response]) -> AsyncIterator[str]:
        """A request that waits for its outcome until the end of the block, and is served then. Yields: its id."""
        self.hold = asyncio.Event()
        sent = asyncio.create_task(request)
        yield await self.received()
        self.hold.set()
        assert (await sent).status_code == 200

    async def run(self) -> None:
        """Answer until cancelled."""
        await self.bus.nc.subscribe(self.bus.subjects.cancel(">"), cb=self._receive_cancel)
        await self.bus.nc.subscribe(self.bus.subjects.lookup(">"), cb=self._receive_lookup)
        await self.bus.nc.subscribe(self.bus.subjects.unfinished, cb=self._receive_unfinished)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._register())
            tasks.create_task(self._lead())

            async def receive(msg: Msg) -> None:
                tasks.create_task(self._serve(msg))

            await self.bus.run_consumer(self.bus.subjects.stream("REQUESTS"), request_consumer(1), receive)

    async def _register(self) -> None:
        """Renew one instance's registration like a worker."""
        bucket = await self.bus.bucket(self.bus.subjects.instances_bucket)
        task = asyncio.current_task()
        while task is not None and not task.cancelling():  # Python 3.11's wait_for can swallow a cancellation
            instance = Instance(instance_id=INSTANCE, model=self.text.card, tp_degree=1, state=self.instance_state)
            with contextlib.suppress(*BUS_ERRORS):  # on a busy machine; as a worker does, it puts the instance again
                await bucket.put(instance.instance_id, encode(instance))
            await asyncio.sleep(HEARTBEAT_S)

    async def _lead(self) -> None:
        """Publish statistics like a leading scheduler."""
        task = asyncio.current_task()
        while task is not None and not task.cancelling():
            await self.bus.publish(self.bus.subjects.stats("scheduler"), self.stats)
            await asyncio.sleep(HEARTBEAT_S)

    async def _receive_lookup(self, msg: Msg) -> None:
        found = next((each for each in self.requests if each.request_id == name_in(msg.subject)), None)
        await self.bus.publish(msg.reply, ActiveRequest(is_known=False) if found is None else active(found))

    async def _receive_unfinished(self, msg: Msg) -> None:
        query = decode(msg.data, UnfinishedQuery)
        found = [
            active(each)
            for each in self.requests
            if each.request_id not in self.ended
            and query.key in (None, each.key)
            and query.instance in ("", INSTANCE)
            and query.id_part in each.request_id
        ]
        await self.bus.publish(msg.reply, UnfinishedRequests(requests=found, is_whole=self.lists_all))

    async def _receive_cancel(self, msg: Msg) -> None:
        self.cancelled.put_nowait(name_in(msg.subject))

    async def _serve(self, msg: Msg) -> None:
        request = decode(msg.data, Request)
        self.requests.append(request)
        output_ids, progress = self._output_ids(request), self.bus.subjects.progress(request.request_id)
        is_rejected = self.status in (OutcomeStatus.REJECTED, OutcomeStatus.REFUSED)  # before its first step
        free = free_positions(request.pinned, 0 if is_rejected else len(output_ids))
        starts = range(0, len(free), TOKENS_PER_STEP)
        for step, start in enumerate(starts):
            positions = free[start : start + TOKENS_PER_STEP][::-1]
            if request.guesses and (last := int(free[-1])) not in positions:
                guess = Guesses(
                    step=step, positions=pack_int32([last]), tokens=pack_int32([66]), confidences=GUESS_CONFIDENCE
                )
                await self.bus.publish(self.bus.subjects.guesses(request.request_id), guess)
            if request.stream:
                part = progress_of(request, output_ids, positions, step, is_draft=self.drafts)
                await self.bus.publish(progress, part)
        steps = len(starts)
        if self.drafts and request.stream:
            await self.bus.publish(progress, progress_of(request, output_ids, free, steps))
        self.served.put_nowait(request.request_id)
        if self.hold is not None:
            await self.hold.wait()
        await self.bus.store(self.bus.subjects.outcomes(request.request_id), self._outcome(request, output_ids, steps))
        self.ended.add(request.request_id)
        await msg.ack()

    def _output_ids(self, request: Request) -> Int32:
        """The answer, then end-of-text tokens to the end of the output, around the pinned tokens. Shape [O]."""
        output_ids = np.full(request.output_tokens, self.text.card.eos_token_id, dtype=np.int32)
        output_ids[: len(request.pinned) // 4] = unpack_int32(request.pinned)
        free = free_positions(request.pinned, request.output_tokens)
        answer = self.text.encode_text(self.answer(request), "answer")[: len(free)]
        output_ids[free] = self.text.card.eos_token_id
        output_ids[free[: len(answer)]] = answer
        return output_ids

    def _outcome(self, request: Request, output_ids: Int32, steps: int) -> Outcome:
        prompt_tokens = len(request.prompt_ids or b"") // 4 + self.text.given_tokens(request)
        if self.losses:
            self.losses -= 1
            error = OutcomeError(message="the bus lost the request", is_lost=True)
            return Outcome(request_id=request.request_id, status=OutcomeStatus.FAILED, error=error, key=request.key)
        if self.status is not OutcomeStatus.COMPLETED:
            wait_s = 7.0 if self.status is OutcomeStatus.REFUSED else None
            message = f"the test chose {self.status.value}"
            error = OutcomeError(message=message, field=self.error_field, retry_after_s=wait_s)
            return Outcome(request_id=request.request_id, status=self.status, error=error, key=request.key)
        finished = self.text.finish(output_ids, request)
        arrival_s = time.time() - request.age_s
        latency_s = time.time() - arrival_s
        return Outcome(
            request_id=request.request_id,
            key=request.key,
            priority=request.priority,
            status=self.status,
            text=finished.text,
            finish_reason=finished.finish_reason,
            stop_reason=finished.stop_reason,
            prompt_tokens=prompt_tokens,
            completion_tokens=finished.completion_tokens,
            token_ids=pack_int32(output_ids[finished.written]) if request.logprobs else b"",
            confidences=pack_float32(confidences_of(finished.written)) if request.logprobs else b"",
            top_tokens=top_tokens_of(request, output_ids, finished.written),
            choices=shares_of(request.choices),
            output_tokens=request.output_tokens,
            arrival_s=arrival_s,
            stats=serving_stats(
                steps=steps,
                recompute_steps=steps,
                slo_s=request.slo_s or 5.0,
                latency_s=latency_s,
                step_s=latency_s / 2,
                slo_met=latency_s <= (request.slo_s or 5.0),
                instances=[INSTANCE],
            ),
        )


@contextlib.asynccontextmanager
async def answering(scheduler: AnsweringScheduler) -> AsyncIterator[AnsweringScheduler]:
    """Run the scheduler during the body."""
    async with during(scheduler.run()):
        yield scheduler
