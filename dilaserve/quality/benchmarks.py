"""The paper's accuracy benchmarks: questions as prompts, and grading of replies.

Source: "Experimental Setup", the table of benchmarks. Prompts and answer extraction follow the usual harnesses.
GSM8K can also be read from the Hugging Face hub, as JSON rows, which need no further package.
"""

import gzip
import random
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from dilaserve.quality.answers import choice_of, number_of, program_of, same_number
from dilaserve.quality.sandbox import passes
from shared.errors import BadInput, DilaserveError
from simulator.lengths import MBPP_TEST_IDS

DEFAULT_DIRECTORY = Path(__file__).parents[3] / "shared" / "data"  # of the benchmarks' files
OUTPUT_TOKENS = 256
GSM8K_SHOTS, GSM8K_SEED = 5, 1234
MBPP_SHOTS = (2, 3, 4)  # task ids of the examples
MBPP_COPIES = 3  # the paper sends each sample three times
LETTERS = "ABCDEFGHIJ"
HUB_URL = "https://datasets-server.huggingface.co"
HUB_TIMEOUT_S = 60.0
MAX_HUB_ROWS = 100  # of one reply
HUB_EXAMPLES = 100  # rows of the training part from which examples are drawn


@dataclass(frozen=True, slots=True)
class BenchmarkQuestion:
    prompt: str
    is_correct: Callable[[str], bool]  # grades the text of a reply; MBPP runs the program


class Gsm8kRow(msgspec.Struct):
    """A row of GSM8K."""

    question: str
    answer: str  # the result follows ####


class _HubRow(msgspec.Struct):
    row: Gsm8kRow


class _HubRows(msgspec.Struct):
    rows: list[_HubRow]


class _MmluPro(msgspec.Struct):
    question: str
    options: list[str]
    answer: str  # a letter
    category: str


class _Mbpp(msgspec.Struct):
    task_id: int
    text: str
    code: str
    test_list: list[str]
    test_setup_code: str = ""


def read_benchmark(name: str, data: Path) -> list[BenchmarkQuestion]:
    """The questions of a benchmark, in file order. Raises: BadInput naming a missing or invalid file."""
    return BENCHMARKS[name](data)


def _gsm8k(data: Path) -> list[BenchmarkQuestion]:
    train = _read(data / "gsm8k_train_500.jsonl.gz", Gsm8kRow)
    return gsm8k_questions(_read(data / "gsm8k_test.jsonl.gz", Gsm8kRow), train)


def gsm8k_questions(tests: Sequence[Gsm8kRow], train: Sequence[Gsm8kRow]) -> list[BenchmarkQuestion]:
    """5-shot; the examples are drawn from the training part for each question."""
    draw = random.Random(GSM8K_SEED)
    return [_gsm8k_question(row, draw.sample(train, min(GSM8K_SHOTS, len(train)))) for row in tests]


def _gsm8k_question(row: Gsm8kRow, examples: Sequence[Gsm8kRow]) -> BenchmarkQuestion:
    examples_text = "".join(f"Question: {example.question}\nAnswer: {example.answer}\n\n" for example in examples)
    expected = row.answer.rpartition("####")[2]
    return BenchmarkQuestion(
        f"{examples_text}Question: {row.question}\nAnswer:", lambda text: same_number(number_of(text), expected)
    )


def _mmlu_pro(data: Path) -> list[BenchmarkQuestion]:
    """0-shot, step by step; the file holds a random part of the benchmark."""
    return [_mmlu_pro_question(row) for row in _read(data / "mmlu_pro_500.jsonl.gz", _MmluPro)]


def _mmlu_pro_question(row: _MmluPro) -> BenchmarkQuestion:
    options = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, row.options, strict=False))
    prompt = (
        f"The following is a multiple choice question (with answers) about {row.category}. Think step by step and then "
        'finish your answer with "the answer is (X)" where X is the correct letter choice.\n\n'
        f"Question:\n{row.question}\nOptions:\n{options}\nAnswer: Let's think step by step."
    )
    return BenchmarkQuestion(prompt, lambda text: choice_of(text) == row.answer)


def _mbpp(data: Path) -> list[BenchmarkQuestion]:
    """3-shot; the paper's 474 samples, three times."""
    rows = _read(data / "mbpp.jsonl.gz", _Mbpp)
    by_id = {row.task_id: row for row in rows}
    if missing := [task_id for task_id in MBPP_SHOTS if task_id not in by_id]:
        raise BadInput(f"{data / 'mbpp.jsonl.gz'} lacks the examples' task ids {missing}", "data")
    examples_text = "".join(f"{_mbpp_task(by_id[i])}{by_id[i].code}\n[DONE]\n\n" for i in MBPP_SHOTS)
    selected = [row for row in rows if row.task_id not in MBPP_TEST_IDS]
    return [_mbpp_question(row, examples_text) for row in selected] * MBPP_COPIES


def _mbpp_question(row: _Mbpp, examples_text: str) -> BenchmarkQuestion:
    tests = "\n".join([row.test_setup_code, *row.test_list])
    return BenchmarkQuestion(examples_text + _mbpp_task(row), lambda text: passes(program_of(text), tests))


def _mbpp_task(row: _Mbpp) -> str:
    tests = "\n".join(row.test_list)
    return (
        f"You are an expert Python programmer, and here is your task: {row.text} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )


BENCHMARKS = {"gsm8k": _gsm8k, "mmlu-pro": _mmlu_pro, "mbpp": _mbpp}

T = TypeVar("T")


def _read(path: Path, kind: type[T]) -> list[T]:
    try:
        with gzip.open(path, "rb") as file:
            rows = [
                msgspec.json.decode(line, type=kind)
                for line in file.read().removeprefix(BOM_UTF8).splitlines()
                if line.strip()
            ]
    except (OSError, EOFError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"--data {path.parent}: cannot read {path.name}: {error}", "data") from None
    if not rows:
        raise BadInput(f"--data {path.parent}: {path.name} has no rows", "data")
    return rows


def download_gsm8k(questions: int, url: str = HUB_URL) -> list[BenchmarkQuestion]:
    """The first questions, 5-shot. Raises: DilaserveError if the hub does not give them."""
    with httpx.Client(base_url=url, timeout=HUB_TIMEOUT_S) as client:
        try:
            train = _read_part(client, "train", 0, HUB_EXAMPLES)
            tests: list[Gsm8kRow] = []
            while len(tests) < questions:
                tests += (part := _read_part(client, "test", len(tests), min(MAX_HUB_ROWS, questions - len(tests))))
                if not part:
                    break
        except (httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise DilaserveError(
                f"cannot read GSM8K from {url}: {reason}; give a file or a directory by --data"
            ) from None
    return gsm8k_questions(tests, train)


def _read_part(client: httpx.Client, split: str, offset: int, length: int) -> Sequence[Gsm8kRow]:
    query: dict[str, str | int] = {
        "dataset": "openai/gsm8k",
        "config": "main",
        "split": split,
        "offset": offset,
        "length": length,
    }
    reply = client.get("/rows", params=query).raise_for_status()
    return [each.row for each in msgspec.json.decode(reply.content, type=_HubRows).rows]
