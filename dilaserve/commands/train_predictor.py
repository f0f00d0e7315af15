"""`dilaserve train-predictor`: trains the step predictor of a model."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from dilaserve.outputs import add_bar, check_directory, open_progress
from dilaserve.stack.up_options import Cache
from shared.messages.cell import DEFAULT_THRESHOLDS_TEXT

EXAMPLE = (
    "Example: dilaserve train-predictor --model models/demo --prompts models/demo/heldout.jsonl "
    "--out models/demo/predictor"
)


def train_predictor(
    *,
    model: Annotated[str, typer.Option(help="Checkpoint directory or hub id.")],
    prompts: Annotated[Path, typer.Option(help='JSONL, rows such as {"prompt": "...", "output_tokens": 128}.')],
    out: Annotated[Path, typer.Option(help="Output directory; services look in MODEL/predictor.")],
    requests: Annotated[int, typer.Option(min=1, help="Training rows, at most.")] = 100,
    held_out: Annotated[int, typer.Option(min=1, help="Held-out rows, at most a fifth of all.")] = 50,
    thresholds: Annotated[str, typer.Option(help="Candidate thresholds.")] = DEFAULT_THRESHOLDS_TEXT,
    cache: Cache = None,
    block_length: Annotated[
        int | None, typer.Option(min=1, help="Block length in tokens.", show_default="the model's, or 32")
    ] = None,
    output_lengths: Annotated[str, typer.Option(help="Output lengths in turn; default: the rows'.")] = "",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all cores.")] = 0,
    seed: Annotated[int, typer.Option(help="Random seed of the threshold changes.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Train a model of the remaining steps, and report its errors on held-out requests.

    Each request runs at every threshold, once from its start and once from a state reached at changing thresholds.
    """
    import msgspec  # noqa: PLC0415

    from dilaserve.prediction.collecting import collect, num_runs, open_engine, split  # noqa: PLC0415
    from dilaserve.prediction.cost import cost_by_granularity  # noqa: PLC0415
    from dilaserve.prediction.training_runs import read_prompts  # noqa: PLC0415
    from dilaserve.stack.options import choose_cache, read_integers, read_thresholds  # noqa: PLC0415
    from services.predictor.model import StepPredictor  # noqa: PLC0415
    from services.predictor.training import save_predictor, train  # noqa: PLC0415
    from shared.logs import configure_logs  # noqa: PLC0415
    from shared.messages.requests import DEFAULT_BLOCK_LENGTH  # noqa: PLC0415
    from shared.model_files import find_model  # noqa: PLC0415
    from shared.text import TextModel  # noqa: PLC0415

    configure_logs("train-predictor", level="warning")
    candidates = read_thresholds(thresholds)
    directory = find_model(model)
    text = TextModel(directory, model)
    lengths = read_integers("--output-lengths", output_lengths) if output_lengths else []
    rows = read_prompts(prompts, text, block_length or text.card.block_length or DEFAULT_BLOCK_LENGTH, lengths)
    training, testing = split(rows, requests, held_out)
    with open_engine(directory, choose_cache(cache, directory), threads) as engine, open_progress() as progress:
        check_directory("--out", out)
        on_run = add_bar(progress, "runs", num_runs([*training, *testing], candidates))
        learned = collect(engine, training, candidates, seed, on_run)
        tested = collect(engine, testing, candidates, seed + 1, on_run)
        fit = add_bar(progress, "training", 1)
        trained = train(learned.trajectories, tested.fixed.trajectories, tested.changing.trajectories, candidates)
        fit()
    save_predictor(out, trained)
    report = {
        "predictor": trained.card.version,
        "requests": {"learnt": len(training), "held_out": len(testing)},
        "examples": trained.report.examples,
        "mean_relative_error": {"fixed": trained.report.fixed, "changing": trained.report.changing},
        "error_by_granularity": trained.report.by_granularity,
        "cost_by_granularity": cost_by_granularity(StepPredictor(trained.booster), tested.fixed, candidates),
        "update_granularity": trained.card.update_granularity,
        "tokens_per_step": dict(zip(trained.card.thresholds, trained.card.tokens_per_step, strict=True)),
        "step_ms": 1000 * tested.fixed.seconds / tested.fixed.iterations,
    }
    serve = shlex.join(["dilaserve", "up", "--model", model, "--predictor", str(out)])
    done = f"{out} is written. Next: {serve}"
    typer.echo(msgspec.json.encode(report).decode() if json else f"{_format(report)}\n{done}")


def _format(report: dict[str, Any]) -> str:
    errors = report["mean_relative_error"]
    lines = [f"{'mean relative error of the steps left':42} {'fixed':>8} {'changing':>9}"]
    lines += [f"{name:42} {errors['fixed'][name]:8.1%} {errors['changing'][name]:9.1%}" for name in errors["fixed"]]
    lines += ["", f"{'prediction every':>20} {'error':>8} {'cost / step time':>19}"]
    for tokens, error in report["error_by_granularity"].items():
        lines.append(f"{tokens:>13} tokens {error:8.1%} {report['cost_by_granularity'][tokens]:19.2%}")
    return "\n".join([*lines, "", f"chosen: every {report['update_granularity']} tokens"])
