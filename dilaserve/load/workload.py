"""Workloads: requests and arrival times."""

import random
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dilaserve.quality.benchmarks import OUTPUT_TOKENS, BenchmarkQuestion
from shared.errors import BadInput
from simulator.workload import read_trace

PLAIN_TOKENS = range(100, 1000)  # ids of ordinary tokens in any vocabulary


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A row of REQUESTS.jsonl."""

    prompt: str
    answer: str | None = None  # the reply is correct if it contains `The answer is ANSWER.`
    output_tokens: int | None = None
    slo_s: float | None = None  # seconds
    priority: int = 0
    raw: bool = False  # send the prompt without a chat template
    prompt_ids: list[int] | None = None  # token ids in place of the prompt


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """Requests, sent in turn and repeatedly, and arrival times in seconds from the start, ascending."""

    requests: Sequence[LoadRequest]
    arrivals_s: Sequence[float]
    duration_s: float

    def request(self, number: int) -> LoadRequest:
        return self.requests[number % len(self.requests)]

    def until(self, duration_s: float) -> "RequestLoad":
        """The part of the load that arrives within the duration."""
        return RequestLoad(self.requests, [at_s for at_s in self.arrivals_s if at_s < duration_s], duration_s)


def rows_load(rows: Sequence[LoadRequest], rate_rps: float, duration_s: float, seed: int) -> RequestLoad:
    """The rows in turn for the duration, with Poisson arrivals."""
    return RequestLoad(rows, poisson_arrivals(rate_rps, duration_s, seed), duration_s)


def trace_load(path: Path, seed: int) -> RequestLoad:
    """The arrivals and lengths of a trace, with random prompts. Raises: BadInput naming file and line."""
    trace, draw = read_trace(path), random.Random(seed)
    columns = (trace.prompt_tokens, trace.output_tokens, trace.slo_s, trace.priority)
    rows = [
        LoadRequest(
            prompt="",
            prompt_ids=draw.choices(PLAIN_TOKENS, k=max(1, prompt)),
            output_tokens=output,
            slo_s=slo_s if slo_s > 0 else None,  # NaN: no SLO
            priority=priority,
        )
        for prompt, output, slo_s, priority in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return RequestLoad(rows, trace.arrival_s.tolist(), float(trace.arrival_s[-1]))


def benchmark_load(
    questions: Sequence[BenchmarkQuestion], rate_rps: float, duration_s: float | None, seed: int
) -> RequestLoad:
    """Each question once, or the questions in turn for the duration, with Poisson arrivals."""
    rows = [LoadRequest(prompt=question.prompt, output_tokens=OUTPUT_TOKENS, raw=True) for question in questions]
    if duration_s is not None:
        return rows_load(rows, rate_rps, duration_s, seed)
    draw, now_s = random.Random(seed), 0.0
    arrivals_s = [now_s := now_s + draw.expovariate(rate_rps) for _ in rows]
    return RequestLoad(rows, arrivals_s, now_s)


def read_requests(path: Path, option: str = "--requests") -> list[LoadRequest]:
    """The rows of a JSONL file; unknown fields are ignored. Raises: BadInput naming option, file and row."""
    try:
        rows = [line for line in path.read_bytes().removeprefix(BOM_UTF8).splitlines() if line.strip()]
    except OSError as error:
        raise BadInput(f"{option} {path}: {error.strerror}") from None
    if not rows:
        raise BadInput(f'{option} {path} is empty; accepted: rows such as {{"prompt": "...", "answer": "29"}}')
    return [_read_row(row, f"{option} {path}, row {number}") for number, row in enumerate(rows, 1)]


def poisson_arrivals(rate_rps: float, duration_s: float, seed: int) -> list[float]:
    """Arrival times within the duration, ascending. Units: requests/s, seconds from the start."""
    random_source, times, now_s = random.Random(seed), [], 0.0
    while (now_s := now_s + random_source.expovariate(rate_rps)) < duration_s:
        times.append(now_s)
    return times


def _read_row(row: bytes, where: str) -> LoadRequest:
    try:
        return msgspec.json.decode(row, type=LoadRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{where}: {error}") from None
