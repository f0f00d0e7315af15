"""`dilaserve tune`: measures a model on this machine and suggests how to serve it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dilaserve.stack.up_options import Cache
from shared.messages.cell import DEFAULT_THRESHOLDS_TEXT

EXAMPLE = "Example: dilaserve tune --model models/demo --prompts models/demo/heldout.jsonl --out tuned"


def tune(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint directory or hub id.")],
    prompts: Annotated[
        Path,
        typer.Option(help='JSONL, rows such as {"prompt": "...", "output_tokens": 128}; "answer" measures quality.'),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the results; the same one continues an interrupted tuning.")],
    tp: Annotated[str, typer.Option(help="TP degrees to profile, comma-separated.")] = "1",
    thresholds: Annotated[str, typer.Option(help="Candidate thresholds.")] = DEFAULT_THRESHOLDS_TEXT,
    requests: Annotated[int, typer.Option(min=1, help="Rows to learn from, at most.")] = 100,
    held_out: Annotated[int, typer.Option(min=1, help="Held-out rows, at most a fifth of all.")] = 25,
    cache: Cache = None,
    max_tokens: Annotated[int, typer.Option(min=32, help="Largest batch to profile, in tokens.")] = 8192,
    repeats: Annotated[int, typer.Option(min=1, max=14, help="Runs per point of the profile.")] = 5,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Device.")] = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="Number format.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads per rank; 0: an equal share.")] = 0,
) -> None:
    """Measure the latency profile, record requests at each threshold, train the step predictor, and suggest thresholds
    and an SLO. Writes a report with plots, and prints the command that serves the model."""
    from dilaserve.outputs import check_directory, check_plots  # noqa: PLC0415

    check_plots("tune")
    from dilaserve.stack.options import check_model, choose_cache, read_integers, read_thresholds  # noqa: PLC0415
    from dilaserve.tuning.report import write_report  # noqa: PLC0415
    from dilaserve.tuning.steps import TuneOptions, tune_model  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.model_files import default_model_name  # noqa: PLC0415
    from shared.text import TextModel  # noqa: PLC0415

    configure_logs("tune", level="warning")
    directory = check_model(model)
    options = TuneOptions(
        model=model,
        directory=directory,
        text=TextModel(directory, default_model_name(model)),
        prompts=prompts,
        out=out,
        degrees=sorted(set(read_integers("--tp", tp))),
        thresholds=read_thresholds(thresholds),
        cache=choose_cache(cache, directory),
        requests=requests,
        held_out=held_out,
        max_tokens=max_tokens,
        repeats=repeats,
        device=device,
        dtype=dtype,
        threads=threads,
    )
    check_directory("--out", out)
    tuning = tune_model(options, typer.echo)
    typer.echo(f"Report: {write_report(out, tuning)}\n\nServe the model with\n\n    {tuning.command}")
