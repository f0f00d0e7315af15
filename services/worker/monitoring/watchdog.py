"""Ends the process if an iteration hangs, since the event loop would continue to renew the registration."""

import asyncio
import os
from collections.abc import Awaitable, Callable

import structlog

from shared.messages.steps import StepKind
from shared.profile import LatencyProfile

log = structlog.get_logger(__name__)

TICK_S = 0.5
MIN_LIMIT_S = 10.0
LIMIT_STEPS = 20  # accepted time of an iteration, in recompute steps of a full batch


def iteration_limit_s(profile: LatencyProfile, tp: int, max_batch_tokens: int, batch_tokens: int) -> float:
    """The time after which an iteration of `batch_tokens` counts as hung. A text that is longer than a full batch runs
    alone, and the time of its attention grows with the square of its tokens."""
    full_s = profile.latency_s(tp, max_batch_tokens, StepKind.RECOMPUTE)
    return float(max(MIN_LIMIT_S, LIMIT_STEPS * full_s * max(1.0, batch_tokens / max_batch_tokens) ** 2))


async def end_when_hung(
    limit_s: Callable[[], float], running: Callable[[], int], on_hang: Callable[[], Awaitable[None]]
) -> None:
    """Watch until cancelled. `limit_s()`: of the current iteration. `running()`: its serial number; 0: none runs.
    `on_hang()`: awaited before the end. A process that was stopped for a while does not count that time as
    one of the iteration, so it survives."""
    loop = asyncio.get_running_loop()
    watched, waited_s, last_s = 0, 0.0, loop.time()
    while True:
        await asyncio.sleep(TICK_S)
        now_s, now_running = loop.time(), running()
        waited_s = waited_s + min(now_s - last_s, 2 * TICK_S) if now_running and now_running == watched else 0.0
        watched, last_s = now_running, now_s
        if waited_s > limit_s():
            log.error("an iteration hangs; ending the instance", limit_s=round(limit_s(), 1))
            await on_hang()
            os._exit(1)  # the engine's thread cannot be ended
