"""What to send, and when."""

import random
from pathlib import Path

import msgspec

from shared.errors import BadInput


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A row of REQUESTS.jsonl."""

    prompt: str
    answer: str | None = None  # right if the reply says `The answer is ANSWER.`
    output_tokens: int | None = None
    slo_s: float | None = None  # seconds


def read_requests(path: Path, option: str = "--requests") -> list[LoadRequest]:
    """The rows of a JSONL file; unknown fields are ignored. Raises: BadInput naming option and row."""
    try:
        rows = [line for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise BadInput(f"{option} {path}: {error.strerror}") from None
    if not rows:
        raise BadInput(f'{option} {path} is empty; a row is such as {{"prompt": "...", "answer": "29"}}')
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
