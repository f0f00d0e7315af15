"""Prompt and output lengths of the workloads: from the data files, or generated after the paper's tables."""

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared.arrays import Float64, Int64
from shared.errors import BadInput

DATA = Path(__file__).parents[2] / "shared" / "data"  # beside the project
BENCHMARK_OUTPUT = 256  # tokens
BLOCK = 32
MAX_TOKENS = 4096  # prompt and output together: the models' limit
GENERATED = 10_000  # samples, where the data files are missing
# The paper's tables: ShareGPT's quantiles, and the samples and mean prompt length of the benchmarks. What lies between
# the paper's quantiles is set so that the means come out as the paper's, 140 and 264.
SHAREGPT_PROMPT = ((0.0, 0.5, 0.75, 0.9, 0.99, 1.0), (4, 28, 75, 344, 1698, 2600))
SHAREGPT_OUTPUT = ((0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 1.0), (8, 80, 208, 320, 528, 720, 912, 1600))
BENCHMARKS = {
    "gsm8k": ("gsm8k_5shot", 1319, 1020),
    "mmlu-pro": ("mmlu_pro_0shot", 12032, 261),
    "mbpp": ("mbpp_3shot", 474, 737),
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Samples, and where they are from. Shapes: both [n]. Units: tokens."""

    prompt_tokens: Int64
    output_tokens: Int64
    source: str

    def draw(self, random: np.random.Generator, count: int) -> tuple[Int64, Int64]:
        """Samples with replacement, [count] each."""
        picked = random.integers(len(self.prompt_tokens), size=count)
        return self.prompt_tokens[picked], self.output_tokens[picked]


def sharegpt_lengths(data: Path) -> Lengths:
    """ShareGPT's lengths from the data directory; generated ones where it has none."""
    path = data / "sharegpt_lengths.csv.gz"
    if path.is_file():
        rows = list(_rows(path))
        return Lengths(_column(rows, "prompt_tokens"), _column(rows, "output_tokens"), str(path))
    quantiles = (np.arange(GENERATED) + 0.5) / GENERATED
    shuffle = np.random.default_rng(0).permutation(GENERATED)  # prompt and output lengths are independent
    prompts = np.exp(np.interp(quantiles, SHAREGPT_PROMPT[0], np.log(SHAREGPT_PROMPT[1])))
    outputs = np.interp(quantiles, *SHAREGPT_OUTPUT)[shuffle]
    return _fitting(np.rint(prompts), outputs, "generated after the paper's table (no ShareGPT lengths found)")


def benchmark_lengths(name: str, data: Path) -> Lengths:
    """One of BENCHMARKS; where the data directory lacks it, prompts of the paper's mean length."""
    key, samples, mean = BENCHMARKS[name]
    path = data / "benchmark_prompt_lengths.csv.gz"
    if path.is_file():
        rows = [row for row in _rows(path) if row["benchmark"] == key and _in_paper(key, int(row["sample"]))]
        return _fitting(_column(rows, "prompt_tokens"), _outputs(len(rows)), str(path))
    spread = np.random.default_rng(0).uniform(0.75, 1.25, samples)
    return _fitting(np.rint(mean * spread), _outputs(samples), f"generated after the paper's mean of {mean} tokens")


def _in_paper(key: str, sample: int) -> bool:
    """The paper's 474 samples of MBPP are those outside its test split."""
    return key != "mbpp_3shot" or not 11 <= sample <= 510


def _outputs(count: int) -> Float64:
    return np.full(count, float(BENCHMARK_OUTPUT))


def _fitting(prompts: Float64 | Int64, outputs: Float64, source: str) -> Lengths:
    """Outputs in whole blocks, without samples that the model cannot hold."""
    whole = np.ceil(outputs / BLOCK) * BLOCK
    kept = prompts + whole <= MAX_TOKENS
    return Lengths(prompts[kept].astype(np.int64), whole[kept].astype(np.int64), source)


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {error}", "data") from None


def _column(rows: list[Mapping[str, str]], name: str) -> Int64:
    return np.array([int(row[name]) for row in rows], dtype=np.int64)
