"""`dilaserve verify`: compares a model on this machine with published figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.table import Table

from dilaserve.outputs import check_file, number, open_console, open_progress, percent
from shared.errors import BadInput, DilaserveError
from shared.messages.cell import CacheName

if TYPE_CHECKING:
    from dilaserve.quality.published import PublishedFigures
    from dilaserve.quality.verification import Verification, VerifyQuestion
    from shared.text import TextModel

EXAMPLE = "Example: dilaserve verify --model GSAI-ML/LLaDA-8B-Instruct --questions 100"
OUTPUT_TOKENS = 256


def verify(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint directory or hub id.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory with GSM8K's files, or a JSONL file of prompts and answers.",
            show_default="GSM8K, from the hub",
        ),
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Number of questions, from the first on.")] = 100,
    threshold: Annotated[float, typer.Option(min=0.01, max=1, help="Confidence threshold of unmasking.")] = 0.9,
    cache: Annotated[
        CacheName | None, typer.Option(help="KV cache.", show_default="block for block-causal models, else none")
    ] = None,
    output_length: Annotated[
        int | None, typer.Option(min=1, help="Output length in tokens.", show_default="the file's, else 256")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=256, help="Questions that run together.")] = 1,
    tp: Annotated[int, typer.Option(min=1, help="TP degree.")] = 1,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device.")] = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="Number format.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the figures to this file (JSON).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
) -> None:
    """Answer questions in one process; set tokens per step, accuracy and tokens/s beside published figures.

    Exit status 1 if tokens per step differ by more than 10 %, or the accuracy by more than three standard errors.
    """
    from dilaserve.quality.published import published  # noqa: PLC0415
    from dilaserve.quality.verification import differences  # noqa: PLC0415
    from dilaserve.quality.verification import verify as run  # noqa: PLC0415
    from services.worker.engine.cache_mode import CacheMode  # noqa: PLC0415
    from services.worker.engine.offline_decoder import DecodeOptions  # noqa: PLC0415
    from services.worker.model.families import read_config  # noqa: PLC0415
    from services.worker.model.model_loading import (  # noqa: PLC0415
        NO_CACHE,
        CacheSize,
        ModelChoice,
        check_model,
        device_name,
        open_runner,
    )
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.messages.requests import DEFAULT_BLOCK_LENGTH  # noqa: PLC0415
    from shared.model_files import default_model_name  # noqa: PLC0415
    from shared.text import TextModel  # noqa: PLC0415

    configure_logs("verify", level="warning")
    check_file("--out", out)
    choice, name = ModelChoice(model, device, dtype, tp), default_model_name(model)
    directory, _ = check_model(choice)
    config = read_config(directory)
    text = TextModel(directory, name)
    benchmark, asked, length = _questions(data, questions, text)
    block = config.block_length or DEFAULT_BLOCK_LENGTH
    mode = CacheMode(cache or ("block" if config.is_block_causal else "none"))
    options = DecodeOptions(mode, threshold, block, output_length or length)
    longest = max(len(question.prompt_ids) for question in asked) + options.output_length + block
    room = NO_CACHE if mode is CacheMode.NONE else CacheSize(batch, batch * longest)
    with open_runner(choice, room) as runner, open_progress() as progress:
        task = progress.add_task("questions", total=len(asked))
        own = run(asked, runner, options, text, batch, lambda count: progress.advance(task, count))
        where = f"{device_name(runner.device)}, {str(runner.dtype).removeprefix('torch.')}, batch {batch}, cache {mode}"
    known = published(name, benchmark, threshold) if mode is CacheMode.NONE else None
    found = [] if known is None else differences(own, known)
    report = {"model": name, "benchmark": benchmark, "threshold": threshold, "on": where}
    encoded = msgspec.json.encode({**report, "own": own, "published": known, "differences": found})
    if out is not None:
        out.write_bytes(msgspec.json.format(encoded) + b"\n")
    if json:
        typer.echo(encoded)
    else:
        _print(f"{name}, {own.questions} questions of {benchmark}, threshold {threshold:g}; {where}", own, known)
    if found:
        raise DilaserveError("; ".join(found))


def _questions(data: Path | None, count: int, text: "TextModel") -> "tuple[str, Sequence[VerifyQuestion], int]":
    """The benchmark's name, its first questions, and its output length. Raises: BadInput."""
    from dilaserve.load.workload import read_requests  # noqa: PLC0415
    from dilaserve.quality.benchmarks import download_gsm8k, read_benchmark  # noqa: PLC0415
    from dilaserve.quality.verification import chat_questions, raw_questions  # noqa: PLC0415

    if data is None:
        return "gsm8k", raw_questions(download_gsm8k(count), text), OUTPUT_TOKENS
    if data.is_dir():
        return "gsm8k", raw_questions(read_benchmark("gsm8k", data)[:count], text), OUTPUT_TOKENS
    rows = read_requests(data, "--data")[:count]
    if any(row.answer is None for row in rows):
        raise BadInput(f'--data {data}: each row needs an answer, as {{"prompt": "...", "answer": "29"}}')
    lengths = {row.output_tokens for row in rows if row.output_tokens is not None}
    return "rows", chat_questions(rows, text), max(lengths, default=OUTPUT_TOKENS)


def _print(title: str, own: "Verification", known: "PublishedFigures | None") -> None:
    table = Table("", "here", "published", box=None, title=title, title_justify="left")
    table.add_row("tokens per step", number(own.tokens_per_step), number(known.tokens_per_step if known else None))
    table.add_row("accuracy", percent(own.accuracy), percent(known.accuracy if known else None))
    table.add_row("text tokens/s", number(own.tokens_per_s), number(known.tokens_per_s if known else None))
    console = open_console()
    console.print(table)
    if known is None:
        console.print("Nothing is published for this model, threshold and cache.", markup=False)
    else:
        speed_on = f"; speed on {known.speed_on}" if known.speed_on else ""
        console.print(f"Published: {known.source}{speed_on}", markup=False)
