"""Exact match, steps and latency of the demo model by cache mode and threshold.

python -m experiments.cache_effect --problems 200 --threads 1 --cpu-time
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from experiments.demo_model.evaluate import is_right, read_questions
from experiments.engine_throughput import BLOCK_LENGTH, Clock, read_prompts
from experiments.report import RESULTS, Report
from services.worker.cache.cache_mode import modes_of
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.model_runner import ModelRunner
from shared.text import TextModel

OUTPUT_LENGTH = 64  # tokens; the demo model's answers are shorter
BATCH = 64
TIMED_REQUESTS = 16  # run one at a time
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class CacheEffect:
    """Means over all requests; `latency_s` is the median of requests that run alone."""

    exact_match: float
    steps: float
    recompute_steps: float
    latency_s: float


def measure(
    runner: ModelRunner,
    text: TextModel,
    requests: list[CaseRequest],
    answers: list[str],
    options: DecodeOptions,
    clock: Clock,
) -> CacheEffect:
    """Decode all requests together, then the first ones one at a time for the latency."""
    traces = []
    for at in range(0, len(requests), BATCH):
        traces += decode_together(requests[at : at + BATCH], runner, options)
    right = [is_right(text.decode(trace.output_ids), answer) for trace, answer in zip(traces, answers, strict=True)]
    latencies_s = []
    for request in requests[:TIMED_REQUESTS]:
        started = clock()
        decode_together([request], runner, options)
        latencies_s.append(clock() - started)
    return CacheEffect(
        exact_match=statistics.mean(right),
        steps=statistics.mean(trace.nfe for trace in traces),
        recompute_steps=statistics.mean(sum(s.kind == "recompute" for s in trace.steps) for trace in traces),
        latency_s=statistics.median(latencies_s),
    )


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint directory with a heldout.jsonl.")] = Path("models/demo"),
    problems: Annotated[int, typer.Option(min=TIMED_REQUESTS, help="Held-out problems to answer.")] = 200,
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all.")] = 0,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Measure CPU time: for a busy machine and one thread.")
    ] = False,
) -> None:
    """Measure, print the table, and write it to experiments/results/cache_effect.*."""
    answers = [question.answer for question in read_questions(model / "heldout.jsonl")][:problems]
    requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(read_prompts(model, len(answers)))]
    text = TextModel(model, model.name)
    clock = time.process_time if cpu_time else time.perf_counter
    report = Report("Cache effect", f"{len(answers)} problems, output {OUTPUT_LENGTH}, block {BLOCK_LENGTH}")
    latency = "latency alone, ms of CPU" if cpu_time else "latency alone, ms"
    report.add_columns("cache", "threshold", "exact match", "steps", "of these recompute", latency)
    with open_runner(ModelChoice(str(model), dtype=dtype, threads=threads), CacheSize(BATCH)) as runner:
        for mode in modes_of(runner.config):
            for threshold in THRESHOLDS:
                options = DecodeOptions(mode, threshold, BLOCK_LENGTH, OUTPUT_LENGTH, stop_at_eos=True)
                row = measure(runner, text, requests, answers, options, clock)
                report.add_row(
                    mode,
                    threshold,
                    f"{row.exact_match:.1%}",
                    f"{row.steps:.1f}",
                    f"{row.recompute_steps:.1f}",
                    f"{row.latency_s * 1000:.0f}",
                )
    report.write(RESULTS / "cache_effect.md", with_csv=True)


if __name__ == "__main__":
    typer.run(main)
