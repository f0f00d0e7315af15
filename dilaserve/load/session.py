"""One run of a load, with what surrounds it: which instances there were, and how good the replies are."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx

from dilaserve.load.client import CONNECT_S, LoadReply, instances_per_tp, open_client, run_load
from dilaserve.load.summary import InstancesAt
from dilaserve.load.workload import RequestLoad
from dilaserve.quality.benchmarks import BenchmarkQuestion
from dilaserve.quality.judge import Judge

WATCH_S = 1.0  # between two looks at the cluster


async def run_session(
    url: str, load: RequestLoad, slo_s: float | None, on_reply: Callable[[LoadReply], None], key: str = ""
) -> tuple[list[LoadReply], list[InstancesAt]]:
    """The replies in the order of arrival, and the instances that served. Raises: BadInput if no gateway answers."""
    instances: list[InstancesAt] = []
    start_s = time.perf_counter()

    async def watch() -> None:
        async with open_client(url, httpx.Timeout(CONNECT_S), key) as client:
            while True:
                counts = await instances_per_tp(client)
                if counts is not None:
                    instances.append((time.perf_counter() - start_s, counts))
                await asyncio.sleep(WATCH_S)

    watching = asyncio.create_task(watch())
    try:
        return await run_load(url, load.requests, load.arrivals_s, slo_s, on_reply, key), instances
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def graded(
    replies: Sequence[LoadReply], questions: Sequence[BenchmarkQuestion], on_graded: Callable[[], None]
) -> list[LoadReply]:
    """Each reply with whether it is right; replies are to the questions in turn. A failed request stays ungraded.

    Raises: DilaserveError if programs are to be run and cannot be.
    """

    def grade(numbered: tuple[int, LoadReply]) -> LoadReply:
        number, reply = numbered
        right = None if reply.error else questions[number % len(questions)].right(reply.text)
        on_graded()
        return replace(reply, right=right)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(grade, enumerate(replies)))


async def judged(
    replies: Sequence[LoadReply], load: RequestLoad, judge: Judge, on_score: Callable[[], None]
) -> dict[str, Any]:
    """What the judge says of the replies to prompts that are text."""
    prompts = [load.request(number).prompt for number in range(len(replies))]
    pairs = [
        (prompt, reply.text) for prompt, reply in zip(prompts, replies, strict=True) if prompt and reply.error is None
    ]
    scores = await judge.scores(pairs, on_score)
    given = [score for score in scores if score is not None]
    return {
        "model": judge.model,
        "mean_score": sum(given) / len(given) if given else None,
        "scored": len(given),
        "unscored": len(scores) - len(given),
    }
