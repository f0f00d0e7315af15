"""Runs a load, records the instances, and grades or judges the replies."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from dilaserve.load.client import CONNECT_S, LoadReply, instances_per_tp, open_client, run_load
from dilaserve.load.summary import InstancesAt
from dilaserve.load.workload import RequestLoad
from dilaserve.quality.benchmarks import BenchmarkQuestion
from dilaserve.quality.judge import Judge
from shared.tasks import during

POLL_INTERVAL_S = 1.0  # of the cluster's state


async def run_session(
    url: str,
    load: RequestLoad,
    slo_s: float | None,
    on_reply: Callable[[LoadReply], None],
    key: str = "",
    ca: Path | None = None,
    *,
    stream: bool = False,
) -> tuple[list[LoadReply], list[InstancesAt]]:
    """The replies in order of arrival, and the instances over time. `ca`: as `open_client`.

    Raises: BadInput if no gateway answers.
    """
    instances: list[InstancesAt] = []
    start_s = time.perf_counter()

    async def monitor() -> None:
        async with open_client(url, httpx.Timeout(CONNECT_S), key, ca) as client:
            while True:
                counts = await instances_per_tp(client)
                if counts is not None:
                    instances.append((time.perf_counter() - start_s, counts))
                await asyncio.sleep(POLL_INTERVAL_S)

    async with during(monitor()):
        return await run_load(url, load, slo_s, on_reply, key, ca, stream=stream), instances


def graded(
    replies: Sequence[LoadReply], questions: Sequence[BenchmarkQuestion], on_graded: Callable[[], None]
) -> list[LoadReply]:
    """The replies with `correct` set, except for failed requests; reply n is to question n modulo their number.

    Raises: DilaserveError if a program cannot be run.
    """

    def grade(numbered: tuple[int, LoadReply]) -> LoadReply:
        number, reply = numbered
        correct = None if reply.error else questions[number % len(questions)].is_correct(reply.text)
        on_graded()
        return replace(reply, correct=correct)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(grade, enumerate(replies)))


async def judged(
    replies: Sequence[LoadReply], load: RequestLoad, judge: Judge, on_score: Callable[[], None]
) -> dict[str, Any]:
    """The judge's scores of the replies to text prompts."""
    prompts = [load.request(number).prompt for number in range(len(replies))]
    pairs = [
        (prompt, reply.text) for prompt, reply in zip(prompts, replies, strict=True) if prompt and reply.error is None
    ]
    scores = await judge.scores(pairs, on_score)
    scored = [score for score in scores if score is not None]
    return {
        "model": judge.model,
        "mean_score": sum(scored) / len(scored) if scored else None,
        "scored": len(scored),
        "unscored": len(scores) - len(scored),
    }
