"""Reads GSM8K from the Hugging Face hub, as JSON rows, which need no further package."""

from collections.abc import Sequence

import httpx
import msgspec

from dilaserve.quality.benchmarks import BenchmarkQuestion, Gsm8kRow, gsm8k_questions
from shared.errors import DilaserveError

URL = "https://datasets-server.huggingface.co"
MAX_ROWS = 100  # of one reply
EXAMPLES = 100  # rows of the training part from which examples are drawn
TIMEOUT_S = 60.0


class _Row(msgspec.Struct):
    row: Gsm8kRow


class _Rows(msgspec.Struct):
    rows: list[_Row]


def download_gsm8k(questions: int, url: str = URL) -> list[BenchmarkQuestion]:
    """The first questions, 5-shot. Raises: DilaserveError if the hub does not give them."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
        try:
            train = _read(client, "train", 0, EXAMPLES)
            tests: list[Gsm8kRow] = []
            while len(tests) < questions:
                tests += (part := _read(client, "test", len(tests), min(MAX_ROWS, questions - len(tests))))
                if not part:
                    break
        except (httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise DilaserveError(
                f"cannot read GSM8K from {url}: {reason}; give a file or a directory by --data"
            ) from None
    return gsm8k_questions(tests, train)


def _read(client: httpx.Client, split: str, offset: int, length: int) -> Sequence[Gsm8kRow]:
    query: dict[str, str | int] = {
        "dataset": "openai/gsm8k",
        "config": "main",
        "split": split,
        "offset": offset,
        "length": length,
    }
    reply = client.get("/rows", params=query).raise_for_status()
    return [each.row for each in msgspec.json.decode(reply.content, type=_Rows).rows]
