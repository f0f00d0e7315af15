"""The block-causal demo model against the one with full attention: text tokens per CPU second in the worker's engine,
each at the fastest threshold at which it is right often enough.

python -m experiments.block_demo
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dilaserve.quality.answers import states_answer
from experiments.held_out import held_out, read_prompts, text_length
from experiments.report import RESULTS, Report, target_list
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.model_runner import ModelRunner
from shared.text import TextModel

FULL_ATTENTION, BLOCK_CAUSAL = Path("models/demo"), Path("models/demo-block")
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
MIN_EXACT_MATCH, MIN_RATIO = 0.85, 1.5
OUTPUT = 64  # tokens; the longest answer of the problems is shorter


@dataclass(frozen=True, slots=True)
class DecodedProblems:
    exact_match: float
    steps: float  # of a request
    tokens_per_s: float  # up to the end of the text, per CPU second


@dataclass(frozen=True, slots=True)
class Contestant:
    """A loaded model with its prompts and their answers."""

    name: str
    mode: CacheMode
    block_length: int
    runner: ModelRunner
    text: TextModel
    prompts: list[list[int]]
    answers: list[str]

    def measure(self, threshold: float, batch: int) -> DecodedProblems:
        """Answer all problems, `batch` at a time, each to the block with the end of its text."""
        options = DecodeOptions(self.mode, threshold, self.block_length, OUTPUT, stop_at_eos=True)
        requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(self.prompts)]
        started_s = time.process_time()
        traces = decode_together(requests, self.runner, options, max_requests=batch)
        took_s = time.process_time() - started_s
        eos_id = self.runner.config.eos_token_id
        lengths = [text_length(trace.output_ids, eos_id) for trace in traces]
        texts = [self.text.decode(trace.output_ids[:length]) for trace, length in zip(traces, lengths, strict=True)]
        right = [states_answer(text, answer) for text, answer in zip(texts, self.answers, strict=True)]
        steps = statistics.mean(trace.nfe for trace in traces)
        return DecodedProblems(statistics.mean(right), steps, sum(lengths) / took_s)


def contestant(directory: Path, runner: ModelRunner, problems: int) -> Contestant:
    is_block = runner.config.is_block_causal
    answers = [str(row.answer) for row in held_out(directory)][:problems]
    return Contestant(
        name=f"{directory.name}, {'block-causal' if is_block else 'full attention'}",
        mode=CacheMode.BLOCK if is_block else CacheMode.DUAL,
        block_length=runner.config.block_length or 32,
        runner=runner,
        text=TextModel(directory, directory.name),
        prompts=read_prompts(directory, len(answers)),
        answers=answers,
    )


def main(
    full: Annotated[Path, typer.Option(help="The model with full attention.")] = FULL_ATTENTION,
    block: Annotated[Path, typer.Option(help="The block-causal model.")] = BLOCK_CAUSAL,
    problems: Annotated[int, typer.Option(min=1, help="Held-out problems to answer.")] = 300,
    batch: Annotated[int, typer.Option(min=1, help="Requests in one iteration.")] = 16,
    pairs: Annotated[int, typer.Option(min=1, help="Interleaved pairs at the chosen thresholds.")] = 5,
    out: Annotated[Path, typer.Option(help="Directory of the report.")] = RESULTS,
) -> None:
    """Find each model's fastest threshold, then compare the two in interleaved pairs."""
    report = Report(
        "The block-causal demo model",
        f"{problems} held-out problems, {batch} at a time, to the end of the text, float32, one thread. "
        f"The model with full attention has the cache dual.",
    )
    report.add_columns("model", "threshold", "exact match", "steps", "text tokens per CPU second")
    fastest: list[tuple[Contestant, float]] = []
    size = CacheSize(batch, problems * 512)
    with (
        open_runner(ModelChoice(str(full), dtype="float32", threads=1), size) as of_full,
        open_runner(ModelChoice(str(block), dtype="float32", threads=1), size) as of_block,
    ):
        for each in (contestant(full, of_full, problems), contestant(block, of_block, problems)):
            each.measure(THRESHOLDS[-1], batch)  # warm up
            found = {threshold: each.measure(threshold, batch) for threshold in THRESHOLDS}
            for threshold, row in found.items():
                report.add_row(
                    each.name, threshold, f"{row.exact_match:.1%}", f"{row.steps:.1f}", f"{row.tokens_per_s:.0f}"
                )
            enough = [t for t, row in found.items() if row.exact_match >= MIN_EXACT_MATCH] or [THRESHOLDS[-1]]
            fastest.append((each, max(enough, key=lambda threshold: found[threshold].tokens_per_s)))
        rates = [[each.measure(threshold, batch) for each, threshold in fastest] for _ in range(pairs)]
    ratios = sorted(block.tokens_per_s / full.tokens_per_s for full, block in rates)
    ratio = statistics.median(ratios)
    thresholds = " and ".join(f"{threshold:g} ({each.name})" for each, threshold in fastest)
    report.add(
        f"At {thresholds}, {pairs} interleaved pairs: {ratio:.2f} times the tokens per CPU second "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}).",
        target_list(
            {
                f"exact match of each at its threshold at least {MIN_EXACT_MATCH:.0%}": all(
                    row.exact_match >= MIN_EXACT_MATCH for row in rates[0]
                ),
                f"at least {MIN_RATIO} times the tokens": ratio >= MIN_RATIO,
            }
        ),
    )
    report.write(out / "block_demo.md")


if __name__ == "__main__":
    typer.run(main)
