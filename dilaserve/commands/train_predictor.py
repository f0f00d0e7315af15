"""`dilaserve train-predictor`: the step predictor of a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dilaserve.outputs import check_directory

EXAMPLE = (
    "Example: dilaserve train-predictor --model models/demo --prompts models/demo/heldout.jsonl "
    "--out models/demo/predictor"
)


def train_predictor(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint directory, or a hub id.")],
    prompts: Annotated[Path, typer.Option(help='JSONL, rows such as {"prompt": "...", "output_tokens": 128}.')],
    out: Annotated[Path, typer.Option(help="Directory to write; MODEL/predictor is where the services look.")],
    requests: Annotated[int, typer.Option(min=1, help="Rows to learn from, at most.")] = 100,
    held_out: Annotated[int, typer.Option(min=1, help="Other rows to judge by, at most a fifth of all.")] = 50,
    thresholds: Annotated[str, typer.Option(help="Candidate confidence thresholds.")] = "0.5,0.6,0.7,0.8,0.9",
    cache: Annotated[str, typer.Option(help="KV cache, as the workers will have it: none, prefix or dual.")] = "dual",
    block_length: Annotated[int, typer.Option(min=1, help="Tokens of a block.")] = 32,
    output_lengths: Annotated[str, typer.Option(help="Output tokens, taken in turn; default: the rows' own.")] = "",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of a step; 0: all cores.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the thresholds that change on the way.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Run requests under every threshold, learn how many steps they have left, and report the held-out errors.

    Each request runs once under every threshold and once more from a state that it reached under changing ones.
    """
    import msgspec  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    from dilaserve.prediction.collecting import collect, num_runs, open_engine, split  # noqa: PLC0415
    from dilaserve.prediction.cost import cost_by_granularity  # noqa: PLC0415
    from dilaserve.prediction.training_runs import read_prompts  # noqa: PLC0415
    from dilaserve.stack.options import read_thresholds  # noqa: PLC0415
    from services.predictor.model import StepPredictor  # noqa: PLC0415
    from services.predictor.training import save_predictor, train  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.model_files import find_model  # noqa: PLC0415
    from shared.text import TextModel  # noqa: PLC0415

    configure_logs("train-predictor", level="warning")
    candidates = read_thresholds(thresholds)
    directory = find_model(model)
    text = TextModel(directory, model)
    rows = read_prompts(prompts, text, block_length, _lengths(output_lengths))
    learnt, judging = split(rows, requests, held_out)
    console = Console(stderr=True)
    with (
        open_engine(directory, cache, threads) as engine,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        check_directory("--out", out)
        bar = progress.add_task("runs", total=num_runs([*learnt, *judging], candidates))
        mask = text.card.mask_token_id
        known = collect(engine, mask, learnt, candidates, seed, lambda: progress.advance(bar))
        unknown = collect(engine, mask, judging, candidates, seed + 1, lambda: progress.advance(bar))
    trained = train(known.trajectories, unknown.fixed.trajectories, unknown.changing.trajectories, candidates)
    save_predictor(out, trained)
    report = {
        "predictor": trained.card.version,
        "requests": {"learnt": len(learnt), "held_out": len(judging)},
        "examples": trained.report.examples,
        "mean_relative_error": {"fixed": trained.report.fixed, "changing": trained.report.changing},
        "error_by_granularity": trained.report.by_granularity,
        "cost_by_granularity": cost_by_granularity(StepPredictor(trained.booster), unknown.fixed, candidates),
        "update_granularity": trained.card.update_granularity,
        "tokens_per_step": dict(zip(trained.card.thresholds, trained.card.tokens_per_step, strict=True)),
        "step_ms": 1000 * unknown.fixed.seconds / unknown.fixed.iterations,
    }
    typer.echo(msgspec.json.encode(report).decode() if json else _text(report))


def _lengths(text: str) -> list[int]:
    """Raises: BadInput unless each is a whole number of tokens."""
    from shared.errors import BadInput  # noqa: PLC0415

    try:
        lengths = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        lengths = [0]
    if any(length < 1 for length in lengths):
        raise BadInput(f"--output-lengths {text}: accepted are numbers of tokens, separated by commas, such as 64,128")
    return lengths


def _text(report: dict[str, Any]) -> str:
    """The report for people."""
    errors = report["mean_relative_error"]
    lines = [f"{'mean relative error of the steps left':42} {'fixed':>8} {'changing':>9}"]
    lines += [f"{name:42} {errors['fixed'][name]:8.1%} {errors['changing'][name]:9.1%}" for name in errors["fixed"]]
    lines += ["", f"{'predicted anew every':>20} {'error':>8} {'cost, of step time':>19}"]
    for tokens, error in report["error_by_granularity"].items():
        lines.append(f"{tokens:>13} tokens {error:8.1%} {report['cost_by_granularity'][tokens]:19.2%}")
    return "\n".join([*lines, "", f"chosen: every {report['update_granularity']} tokens"])
