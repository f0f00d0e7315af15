"""Prompt and output lengths of the workloads, as recorded (simulator/data)."""

import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared.arrays import Int64
from shared.errors import BadInput

CSV_ERRORS = (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error)  # of a missing or damaged file
DATA = Path(__file__).parent / "data"  # default directory of the recorded lengths
BENCHMARK_OUTPUT = 256  # tokens: the paper's
BLOCK = 32
BENCHMARKS = {"gsm8k": "gsm8k_5shot", "mmlu-pro": "mmlu_pro_0shot", "mbpp": "mbpp_3shot"}  # their names in the file
MBPP_TEST_IDS = range(11, 511)  # left out by the paper, which has the other 474 samples


@dataclass(frozen=True, slots=True)
class Lengths:
    """Samples and their source. Shapes: both [n]. Units: tokens."""

    prompt_tokens: Int64
    output_tokens: Int64
    source: str

    def draw(self, random: np.random.Generator, count: int) -> tuple[Int64, Int64]:
        """Samples with replacement, [count] each."""
        picked = random.integers(len(self.prompt_tokens), size=count)
        return self.prompt_tokens[picked], self.output_tokens[picked]


def sharegpt_lengths(data: Path = DATA) -> Lengths:
    """ShareGPT's lengths. Raises: BadInput for a missing or damaged file."""
    path = data / "sharegpt_lengths.csv.gz"
    prompts, outputs = _columns(path, list(rows_of(path)), "prompt_tokens", "output_tokens")
    return Lengths(prompts, outputs, str(path))


def benchmark_lengths(name: str, data: Path = DATA) -> Lengths:
    """The lengths of one of BENCHMARKS. Raises: BadInput for a missing or damaged file."""
    path = data / "benchmark_prompt_lengths.csv.gz"
    rows = [row for row in rows_of(path) if row.get("benchmark") == BENCHMARKS[name]]
    prompts, samples = _columns(path, rows, "prompt_tokens", "sample")
    if name == "mbpp":
        prompts = prompts[~np.isin(samples, MBPP_TEST_IDS)]
    return Lengths(prompts, np.full(len(prompts), BENCHMARK_OUTPUT), str(path))


def rows_of(path: Path) -> Iterator[Mapping[str, str]]:
    """The rows of a gzip'd CSV file. Raises: BadInput for a missing or damaged one."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except CSV_ERRORS as error:
        raise BadInput(f"cannot read {path}: {error}", "data") from None


def _columns(path: Path, rows: list[Mapping[str, str]], *names: str) -> list[Int64]:
    """Raises: BadInput without rows, or if one lacks a number in one of these columns."""
    try:
        columns = [np.array([int(row[name]) for row in rows], dtype=np.int64) for name in names]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{path}: a row lacks a number in {' or '.join(names)}: {error!r}", "data") from None
    if not rows:
        raise BadInput(f"{path} has no rows of this workload", "data")
    return columns
