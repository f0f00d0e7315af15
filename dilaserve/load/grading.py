"""Grades or judges the replies to a load."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from dilaserve.load.client import LoadReply
from dilaserve.load.workload import RequestLoad
from dilaserve.quality.benchmarks import BenchmarkQuestion
from dilaserve.quality.judge import Judge


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
