"""Tokens and steps per second of the worker's engine, by cache mode and batch size, beside a plain loop.

The plain loop is the published one: one request at a time, a full forward each step with the logits of every position,
every block decoded. It runs the same model in the same dtype. The engine is measured so, too, and as it serves: leaving
out the blocks after one that ends the text. Tokens per second count the tokens of the texts, up to their end, which are
the same for both; so leaving out empty blocks counts as the speed that it is.

python -m experiments.engine_throughput --dtype bfloat16 --threads 1
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from experiments.demo_model.model import hidden_rows
from experiments.machine import said_first
from services.worker.decode import CaseRequest, Options, decode_together
from services.worker.feeding import CacheMode
from services.worker.loading import CacheRoom, ModelChoice, choose_dtype, open_runner
from services.worker.models.checkpoint import load
from services.worker.models.decoder import PackedDecoder
from services.worker.runner import ModelRunner
from shared.messages.requests import ChatMessage
from shared.text import TextModel

BLOCK_LENGTH, THRESHOLD = 32, 0.9
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Rate:
    """Units: text tokens and denoising steps, both per second."""

    tokens_per_s: float
    steps_per_s: float


def read_prompts(model: Path, count: int) -> list[list[int]]:
    """The first held-out problems as the model gets them."""
    text = TextModel(model, model.name)
    rows = [json.loads(line) for line in (model / "heldout.jsonl").read_text().splitlines()]
    return [text.encode_chat([ChatMessage(role="user", content=row["prompt"])]).tolist() for row in rows[:count]]


def measure(
    runner: ModelRunner,
    prompts: Sequence[list[int]],
    options: Options,
    most: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Rate:
    """All these requests, at most so many in one iteration."""
    requests = [CaseRequest(str(i), prompt) for i, prompt in enumerate(prompts)]
    started = clock()
    traces = decode_together(requests, runner, options, most=most)
    took_s = clock() - started
    tokens = sum(_text_length(trace.output_ids, runner.config.eos_token_id) for trace in traces)
    return Rate(tokens / took_s, sum(trace.nfe for trace in traces) / took_s)


def measure_plainly(
    decoder: PackedDecoder,
    prompts: Sequence[list[int]],
    output_length: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Rate:
    """One request after another."""
    tokens = steps = 0
    started = clock()
    for prompt in prompts:
        output, own = decode_plainly(decoder, torch.tensor(prompt), output_length)
        tokens += _text_length(output.tolist(), decoder.config.eos_token_id)
        steps += own
    took_s = clock() - started
    return Rate(tokens / took_s, steps / took_s)


@torch.inference_mode()
def decode_plainly(decoder: PackedDecoder, prompt: Tensor, output_length: int) -> tuple[Tensor, int]:
    """The output, and the number of steps. Source: LLaDA's published loop, with Fast-dLLM's threshold rule."""
    mask_id = decoder.config.mask_token_id
    canvas = torch.cat((prompt, prompt.new_full((output_length,), mask_id)))
    steps = 0
    for start in range(len(prompt), len(canvas), BLOCK_LENGTH):
        while (canvas[start : start + BLOCK_LENGTH] == mask_id).any():
            logits = decoder.logits(hidden_rows(decoder, canvas.unsqueeze(0)))  # [L, V]
            confidence, best = logits.double().softmax(dim=-1).max(dim=-1)  # [L]
            confidence[canvas != mask_id] = -1.0
            confidence[start + BLOCK_LENGTH :] = -1.0
            taken = confidence >= THRESHOLD
            taken[confidence.argmax()] = True
            canvas[taken] = best[taken]
            steps += 1
    return canvas[len(prompt) :], steps


def _text_length(output: Sequence[int], eos_token_id: int) -> int:
    return output.index(eos_token_id) if eos_token_id in output else len(output)


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint directory with a heldout.jsonl.")] = Path("models/demo"),
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all.")] = 0,
    batches: Annotated[str, typer.Option(help="Most requests in one iteration, comma-separated.")] = "1,4,16,64",
    requests: Annotated[int, typer.Option(min=1, help="Requests of each measurement.")] = 64,
    output_length: Annotated[int, typer.Option(help="Tokens; 128 is what a request gets if it does not say.")] = 128,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Seconds of CPU: for a busy machine, one thread.")
    ] = False,
) -> None:
    """Measure, print the table, and write it to experiments/results/engine_throughput.json."""
    clock = time.process_time if cpu_time else time.perf_counter
    choice, prompts = ModelChoice(str(model), dtype=dtype, threads=threads), read_prompts(model, requests)
    rows: list[dict[str, object]] = []

    def say(what: str, batch: int, rate: Rate, plain: Rate) -> None:
        times = rate.tokens_per_s / plain.tokens_per_s
        rows.append({"what": what, "batch": batch, "tokens_per_s": rate.tokens_per_s, "steps_per_s": rate.steps_per_s})
        print(f"| {what} | {batch} | {rate.tokens_per_s:.0f} | {rate.steps_per_s:.1f} | {times:.1f} |", flush=True)

    with open_runner(choice, CacheRoom(requests)) as runner:
        decoder = load(model, choose_dtype(dtype, torch.device("cpu")), "cpu")
        where = said_first()
        print(f"{where}\n\n| | batch | tokens/s | steps/s | times the plain loop |\n{'| --- ' * 5}|")
        measure_plainly(decoder, prompts[:1], output_length)  # warm up
        plain = measure_plainly(decoder, prompts, output_length, clock)
        say("plain loop", 1, plain, plain)
        for stop in (False, True):
            for mode in CacheMode:
                options = Options(mode, THRESHOLD, BLOCK_LENGTH, output_length, stop)
                for batch in map(int, batches.split(",")):
                    what = f"{mode}, stopping at the end" if stop else f"{mode}, all blocks"
                    say(what, batch, measure(runner, prompts, options, batch, clock), plain)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "engine_throughput.json").write_text(json.dumps({"where": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
