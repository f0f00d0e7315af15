"""`dilaserve decode`: decodes requests in one process, without a bus."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dilaserve.outputs import check_file, open_progress
from shared.messages.cell import CacheName

EXAMPLE = (
    "Example: dilaserve decode --model models/demo --input CASE.json --cache dual --threshold 0.9 "
    "--block-length 32 --output-length 64 --out TRACE.json"
)


def decode(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint directory or hub id.")],
    input: Annotated[  # noqa: A002
        Path,
        typer.Option(help='{"requests": [{"id": "a", "prompt_ids": [1, 2]}]}; `pattern` if a text must match one.'),
    ],
    out: Annotated[Path, typer.Option(help="Output file of the trace (JSON).")],
    cache: Annotated[CacheName, typer.Option(help="KV cache.")] = "none",
    threshold: Annotated[float, typer.Option(help="Confidence threshold of unmasking, 0 to 1.")] = 0.9,
    edit_threshold: Annotated[
        float | None,
        typer.Option(
            help="LLaDA2.1 only: a step may replace an unmasked token of the current block by a token whose confidence "
            "is above this value; default: no edits."
        ),
    ] = None,
    max_post_steps: Annotated[
        int, typer.Option(min=1, help="With edits: most steps of a block that begin without masks.")
    ] = 16,
    block_length: Annotated[int, typer.Option(min=1, help="Block length in tokens.")] = 32,
    output_length: Annotated[int, typer.Option(min=1, help="Output length in tokens.")] = 64,
    tp: Annotated[int, typer.Option(min=1, help="TP degree.")] = 1,
    batch: Annotated[bool, typer.Option("--batch", help="Run all requests together.")] = False,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device.")] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(help="Number format; auto: bfloat16 on GPUs, float32 on CPUs, whose traces are then equal."),
    ] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads per rank; 0: an equal share.")] = 0,
    stop_at_eos: Annotated[
        bool, typer.Option("--stop-at-eos", help="Skip the blocks after the one with the end of text.")
    ] = False,
) -> None:
    """Decode requests block by block and record every step."""
    import msgspec  # noqa: PLC0415

    from services.worker.engine.cache_mode import CacheMode  # noqa: PLC0415
    from services.worker.engine.offline_decoder import DecodeOptions, EditRule, Trace, decode_together, read_case  # noqa: PLC0415
    from services.worker.model.families import read_config  # noqa: PLC0415
    from services.worker.model.model_loading import NO_CACHE, CacheSize, ModelChoice, choose_device, open_runner  # noqa: PLC0415
    from services.worker.patterns.model_tokens import model_tokens  # noqa: PLC0415
    from services.worker.patterns.pattern_cache import PatternCompiler  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.model_files import find_model  # noqa: PLC0415

    configure_logs("decode", level="warning")
    mode = CacheMode(cache)
    check_file("--out", out)
    edits = None if edit_threshold is None else EditRule(edit_threshold, max_post_steps)
    options = DecodeOptions(mode, threshold, block_length, output_length, stop_at_eos, edits)
    requests = read_case(input)
    groups = [requests] if batch else [[request] for request in requests]
    lengths = [sum(len(request.prompt_ids) + output_length + block_length for request in group) for group in groups]
    room = NO_CACHE if mode is CacheMode.NONE else CacheSize(len(requests), max(lengths))
    directory = find_model(model)
    patterns = PatternCompiler(lambda: model_tokens(directory, read_config(directory).vocab_size))
    if dtype == "auto" and choose_device(device).type == "cpu":
        dtype = "float32"
    with open_runner(ModelChoice(model, device, dtype, tp, threads), room) as runner:
        traces = []
        with open_progress() as progress:
            task = progress.add_task("tokens", total=len(requests) * output_length)
            for group in groups:
                traces += decode_together(
                    group, runner, options, lambda count: progress.advance(task, count), patterns=patterns
                )
    out.write_bytes(msgspec.json.encode(Trace(traces)))
