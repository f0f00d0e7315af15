"""Answers questions in this process, and compares tokens per step and accuracy with published figures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt

import msgspec
import numpy as np

from dilaserve.load.workload import LoadRequest
from dilaserve.quality.answers import states_answer
from dilaserve.quality.benchmarks import BenchmarkQuestion
from dilaserve.quality.published import PublishedFigures
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.model_runner import ModelRunner
from shared.messages.requests import ChatMessage, Request
from shared.text import TextModel

MAX_DEVIATION = 0.10  # relative, of tokens per step
MAX_STANDARD_ERRORS = 3.0  # of the accuracy of as many questions


@dataclass(frozen=True, slots=True)
class VerifyQuestion:
    """A prompt, and how to grade its answer."""

    prompt_ids: list[int]
    is_correct: Callable[[str], bool]


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one's own run; `tokens_per_s` counts the tokens of the texts, up to the end of each."""

    questions: int
    tokens_per_step: float
    accuracy: float  # 0 to 1
    tokens_per_s: float
    seconds: float


def raw_questions(questions: Sequence[BenchmarkQuestion], text: TextModel) -> list[VerifyQuestion]:
    """Questions without a chat template, as the published figures have them."""
    return [VerifyQuestion(text.encode_prompt(each.prompt).tolist(), each.is_correct) for each in questions]


def chat_questions(rows: Sequence[LoadRequest], text: TextModel) -> list[VerifyQuestion]:
    """Rows as one user turn each; an answer is right if the text states `The answer is ANSWER.`."""
    return [
        VerifyQuestion(
            text.encode_chat([ChatMessage(role="user", content=row.prompt)]).tolist(),
            partial(states_answer, answer=str(row.answer)),
        )
        for row in rows
    ]


def verify(
    questions: Sequence[VerifyQuestion],
    runner: ModelRunner,
    options: DecodeOptions,
    text: TextModel,
    batch: int,
    on_answer: Callable[[int], object] = lambda _: None,
) -> Verification:
    """Decode `batch` questions together, and grade them. `on_answer` receives their number. Raises: BadInput."""
    steps = tokens = texts = correct = 0
    start_s = time.perf_counter()
    for first in range(0, len(questions), batch):
        group = questions[first : first + batch]
        requests = [CaseRequest(str(first + i), question.prompt_ids) for i, question in enumerate(group)]
        for question, trace in zip(group, decode_together(requests, runner, options), strict=True):
            finished = text.finish(np.array(trace.output_ids, dtype=np.int32), Request(request_id=trace.id))
            steps += trace.nfe
            tokens += sum(len(step.tokens) for step in trace.steps)
            texts += finished.completion_tokens
            correct += question.is_correct(finished.text)
        on_answer(len(group))
    seconds = time.perf_counter() - start_s
    return Verification(
        questions=len(questions),
        tokens_per_step=tokens / steps,
        accuracy=correct / len(questions),
        tokens_per_s=texts / seconds,
        seconds=seconds,
    )


def differences(own: Verification, published: PublishedFigures) -> list[str]:
    """Where one's own figures differ from the published ones by more than chance explains; speeds are not compared."""
    found = []
    relative = own.tokens_per_step / published.tokens_per_step - 1
    if abs(relative) > MAX_DEVIATION:
        found.append(f"tokens per step differ by {relative:+.1%}, more than {MAX_DEVIATION:.0%}")
    if published.accuracy is not None:
        limit = MAX_STANDARD_ERRORS * sqrt(published.accuracy * (1 - published.accuracy) / own.questions)
        difference = own.accuracy - published.accuracy
        if abs(difference) > limit:
            points = f"{100 * difference:+.1f} points, more than {100 * limit:.1f}"
            found.append(f"accuracy differs by {points} ({MAX_STANDARD_ERRORS:g} standard errors)")
    return found
