"""Tokens and steps per second of the worker's engine by cache mode and batch size, against a plain loop.

The plain loop is the published one: one request at a time, a full forward per step with the logits of every position.
It runs the same model in the same dtype. Both are measured twice: decoding every block, as published, and stopping
after the block that ends the text, as the engine serves. Each row is compared with the plain loop that does the same.
Tokens per second count a text's tokens up to its end.

python -m experiments.engine_throughput --dtype bfloat16 --threads 1 --cpu-time
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn import functional as F

from experiments.held_out import read_prompts, text_length
from experiments.report import RESULTS, Report
from services.worker.engine.cache_mode import CacheMode, modes_of
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.decoder import PackedDecoder
from services.worker.model.model_loading import CacheSize, ModelChoice, choose_dtype, open_runner
from services.worker.model.model_runner import ModelRunner
from services.worker.model.weights import load

BLOCK_LENGTH, THRESHOLD = 32, 0.9
Clock = Callable[[], float]  # returns seconds


@dataclass(frozen=True, slots=True)
class DecodingRate:
    """Units: text tokens and denoising steps, both per second."""

    tokens_per_s: float
    steps_per_s: float


def measure(
    runner: ModelRunner, prompts: Sequence[list[int]], options: DecodeOptions, batch: int, clock: Clock
) -> DecodingRate:
    """Decode all prompts, at most `batch` in one iteration."""
    requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(prompts)]
    started = clock()
    traces = decode_together(requests, runner, options, max_requests=batch)
    took_s = clock() - started
    tokens = sum(text_length(trace.output_ids, runner.config.eos_token_id) for trace in traces)
    return DecodingRate(tokens / took_s, sum(trace.nfe for trace in traces) / took_s)


def measure_plainly(
    decoder: PackedDecoder, prompts: Sequence[list[int]], options: DecodeOptions, clock: Clock
) -> DecodingRate:
    """Decode one prompt after another; only the options `output_length` and `stop_at_eos` matter."""
    tokens = steps = 0
    started = clock()
    for prompt in prompts:
        output, own = decode_plainly(decoder, torch.tensor(prompt), options)
        tokens += text_length(output.tolist(), decoder.config.eos_token_id)
        steps += own
    took_s = clock() - started
    return DecodingRate(tokens / took_s, steps / took_s)


@torch.inference_mode()
def decode_plainly(decoder: PackedDecoder, prompt: Tensor, options: DecodeOptions) -> tuple[Tensor, int]:
    """The output, and the number of steps. Source: LLaDA's published loop, with Fast-dLLM's threshold rule."""
    mask_id, eos_id = decoder.config.mask_token_id, decoder.config.eos_token_id
    canvas = torch.cat((prompt, prompt.new_full((options.output_length,), mask_id)))
    positions, steps = torch.arange(len(canvas)), 0
    for start in range(len(prompt), len(canvas), BLOCK_LENGTH):
        while (canvas[start : start + BLOCK_LENGTH] == mask_id).any():
            logits = decoder.logits(decoder(canvas, positions, attend_all))  # [L, V]
            confidence, best = logits.double().softmax(dim=-1).max(dim=-1)  # [L]
            confidence[canvas != mask_id] = -1.0
            confidence[start + BLOCK_LENGTH :] = -1.0
            taken = confidence >= THRESHOLD
            taken[confidence.argmax()] = True
            canvas[taken] = best[taken]
            steps += 1
        if options.stop_at_eos and (canvas[start : start + BLOCK_LENGTH] == eos_id).any():
            break
    return canvas[len(prompt) :], steps


def attend_all(_layer: int, q: Tensor, kv: Tensor) -> Tensor:
    """Attention among all tokens of one request. Shapes: q [L, H, D] and kv [L, 2 K, D] -> [L, H, D]."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, *kv.chunk(2, dim=1)))  # [1, H, L, D]
    mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    return mixed.squeeze(0).transpose(0, 1)


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint directory with a heldout.jsonl.")] = Path("models/demo"),
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all.")] = 0,
    batches: Annotated[str, typer.Option(help="Maximum requests in one iteration, comma-separated.")] = "1,4,16,64",
    requests: Annotated[int, typer.Option(min=1, help="Requests per measurement.")] = 64,
    output_length: Annotated[int, typer.Option(help="Output tokens; 128 is the default of a request.")] = 128,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Measure CPU time: for a busy machine and one thread.")
    ] = False,
) -> None:
    """Measure, print the table, and write it to experiments/results/engine_throughput-DTYPE.*."""
    clock = time.process_time if cpu_time else time.perf_counter
    choice, prompts = ModelChoice(str(model), dtype=dtype, threads=threads), read_prompts(model, requests)
    with open_runner(choice, CacheSize(requests)) as runner:
        torch_dtype = choose_dtype(dtype, torch.device("cpu"))
        decoder, name = load(model, torch_dtype, "cpu"), str(torch_dtype).removeprefix("torch.")
        seconds = "CPU seconds" if cpu_time else "elapsed seconds"
        measured = f"{requests} requests, output {output_length}, block {BLOCK_LENGTH}, {name}, {seconds}"
        report = Report("Engine throughput", measured)
        report.add_columns("loop", "blocks", "batch", "tokens/s", "steps/s", "times the plain loop")
        for stop in (True, False):
            blocks = "until the text ends" if stop else "all"
            of_mode = {
                mode: DecodeOptions(mode, THRESHOLD, BLOCK_LENGTH, output_length, stop)
                for mode in modes_of(runner.config)
            }
            measure_plainly(decoder, prompts[:2], of_mode[CacheMode.NONE], clock)  # warm up
            plain = measure_plainly(decoder, prompts, of_mode[CacheMode.NONE], clock)
            report.add_row("plain", blocks, 1, f"{plain.tokens_per_s:.0f}", f"{plain.steps_per_s:.1f}", "1.00")
            for mode, options in of_mode.items():
                for batch in map(int, batches.split(",")):
                    measure(runner, prompts[:batch], options, batch, clock)  # warm up
                    rate = measure(runner, prompts, options, batch, clock)
                    times = f"{rate.tokens_per_s / plain.tokens_per_s:.2f}"
                    report.add_row(mode, blocks, batch, f"{rate.tokens_per_s:.0f}", f"{rate.steps_per_s:.1f}", times)
        report.write(RESULTS / f"engine_throughput-{name}.md", with_csv=True)


if __name__ == "__main__":
    typer.run(main)
