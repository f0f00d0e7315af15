"""`dilaserve decode`: requests through the engine in one process, without a bus."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dilaserve.outputs import check_file
from shared.errors import BadInput

EXAMPLE = (
    "Example: dilaserve decode --model models/demo --input CASE.json --cache dual --threshold 0.9 "
    "--block-length 32 --output-length 64 --out TRACE.json"
)


def decode(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint directory, or a hub id.")],
    input: Annotated[Path, typer.Option(help='{"requests": [{"id": "a", "prompt_ids": [1, 2]}]}.')],  # noqa: A002
    out: Annotated[Path, typer.Option(help="Where the trace goes, as JSON.")],
    cache: Annotated[str, typer.Option(help="KV cache: none, prefix or dual.")] = "none",
    threshold: Annotated[float, typer.Option(help="Confidence at which a token is unmasked, 0 to 1.")] = 0.9,
    block_length: Annotated[int, typer.Option(min=1, help="Tokens of a block.")] = 32,
    output_length: Annotated[int, typer.Option(min=1, help="Tokens of the output, in whole blocks.")] = 64,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel degree.")] = 1,
    batch: Annotated[bool, typer.Option("--batch", help="Run all requests together.")] = False,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of each rank; 0: an equal share.")] = 0,
    stop_at_eos: Annotated[
        bool, typer.Option("--stop-at-eos", help="Leave out the blocks after one that holds the end of text.")
    ] = False,
) -> None:
    """Decode requests block by block and write down each step."""
    import msgspec  # noqa: PLC0415

    from services.worker.cache.cache_mode import CacheMode  # noqa: PLC0415
    from services.worker.engine.offline_decoder import DecodeOptions, Trace, decode_together  # noqa: PLC0415
    from services.worker.model.model_loading import NO_CACHE, CacheSize, ModelChoice, open_runner  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415

    configure_logs("decode", level="warning")
    if cache not in tuple(CacheMode):
        raise BadInput(f"--cache must be none, prefix or dual, got {cache}")
    if dtype not in ("float32", "bfloat16"):
        raise BadInput(f"--dtype must be float32 or bfloat16, got {dtype}")
    check_file("--out", out)
    options = DecodeOptions(CacheMode(cache), threshold, block_length, output_length, stop_at_eos)
    requests = _read_case(input)
    groups = [requests] if batch else [[request] for request in requests]
    lengths = [sum(len(request.prompt_ids) + output_length for request in group) for group in groups]
    room = NO_CACHE if options.mode is CacheMode.NONE else CacheSize(len(requests), max(lengths))
    with open_runner(ModelChoice(model, dtype=dtype, tp=tp, threads=threads), room) as runner:
        traces = []
        with _progress() as progress:
            task = progress.add_task("tokens", total=len(requests) * output_length)
            for group in groups:
                traces += decode_together(group, runner, options, lambda count: progress.advance(task, count))
    out.write_bytes(msgspec.json.encode(Trace(traces)))


def _read_case(path: Path) -> Any:
    from services.worker.engine.offline_decoder import Case  # noqa: PLC0415
    from shared.bus.codec import decode as parse  # noqa: PLC0415

    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    try:
        requests = parse(data, Case).requests
    except BadInput as error:
        raise BadInput(f"{path}: {error.message}") from None
    if not requests:
        raise BadInput(f"{path} holds no request")
    return requests


def _progress() -> Any:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)
