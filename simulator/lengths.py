"""Prompt and output lengths of the workloads: from the data files, or generated from the paper's tables."""

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared.arrays import Float64, Int64
from shared.errors import BadInput

DATA = Path(__file__).parents[2] / "shared" / "data"  # default directory of the recorded lengths
BENCHMARK_OUTPUT = 256  # tokens
BLOCK = 32
MAX_TOKENS = 4096  # prompt and output together: the models' limit
NUM_GENERATED = 10_000  # samples, if the data files are missing
# The paper's tables: ShareGPT's quantiles, and the samples and mean prompt length of the benchmarks. The values between
# the paper's quantiles give the paper's means, 140 and 264.
SHAREGPT_PROMPT = ((0.0, 0.5, 0.75, 0.9, 0.99, 1.0), (4, 28, 75, 344, 1698, 2600))
SHAREGPT_OUTPUT = ((0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 1.0), (8, 80, 208, 320, 528, 720, 912, 1600))
BENCHMARKS = {
    "gsm8k": ("gsm8k_5shot", 1319, 1020),
    "mmlu-pro": ("mmlu_pro_0shot", 12032, 261),
    "mbpp": ("mbpp_3shot", 474, 737),
}


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


def sharegpt_lengths(data: Path) -> Lengths:
    """ShareGPT's lengths from the data directory; generated ones if it has none."""
    path = data / "sharegpt_lengths.csv.gz"
    if path.is_file():
        rows = list(_rows(path))
        return Lengths(_column(rows, "prompt_tokens"), _column(rows, "output_tokens"), str(path))
    quantiles = (np.arange(NUM_GENERATED) + 0.5) / NUM_GENERATED
    shuffle = np.random.default_rng(0).permutation(NUM_GENERATED)  # prompt and output lengths are independent
    prompts = np.exp(np.interp(quantiles, SHAREGPT_PROMPT[0], np.log(SHAREGPT_PROMPT[1])))
    outputs = np.interp(quantiles, *SHAREGPT_OUTPUT)[shuffle]
    return _fitting(
        np.rint(prompts).astype(np.int64), outputs, "generated after the paper's table (no ShareGPT lengths found)"
    )


def benchmark_lengths(name: str, data: Path) -> Lengths:
    """One of BENCHMARKS; if the data directory lacks it, prompts of the paper's mean length."""
    key, samples, mean = BENCHMARKS[name]
    path = data / "benchmark_prompt_lengths.csv.gz"
    if path.is_file():
        rows = [row for row in _rows(path) if row["benchmark"] == key]
        if name == "mbpp":  # the paper's 474 samples are those outside the test split
            rows = [row for row in rows if not 11 <= int(row["sample"]) <= 510]
        prompts, source = _column(rows, "prompt_tokens"), str(path)
    else:
        prompts = np.rint(mean * np.random.default_rng(0).uniform(0.75, 1.25, samples)).astype(np.int64)
        source = f"generated after the paper's mean of {mean} tokens"
    return _fitting(prompts, np.full(len(prompts), float(BENCHMARK_OUTPUT)), source)


def _fitting(prompts: Int64, outputs: Float64, source: str) -> Lengths:
    """Round outputs up to whole blocks and drop samples longer than MAX_TOKENS."""
    whole = np.ceil(outputs / BLOCK) * BLOCK
    kept = prompts + whole <= MAX_TOKENS
    return Lengths(prompts[kept], whole[kept].astype(np.int64), source)


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {error}", "data") from None


def _column(rows: list[Mapping[str, str]], name: str) -> Int64:
    return np.array([int(row[name]) for row in rows], dtype=np.int64)
