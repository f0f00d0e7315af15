"""How well steps left are predicted, against the estimates that predictions replace; and what predictions cost.

Trains the demo model's predictor anew and judges it by requests it has not learnt from.

python -m experiments.predictor_accuracy --predictor models/demo/predictor
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import lightgbm
import msgspec
import typer

from dilaserve.commands.up import DEMO_MODEL
from experiments.live_policies import RESULTS
from experiments.machine import environment_header

REPORT = RESULTS / "predictor_accuracy.md"
MOST_ERROR = 0.7  # of the one-shot error
MOST_COST = 0.01  # of step time, at the chosen granularity

TEXT = """# How well the steps left are predicted

{where}

Predictor {predictor}: {requests[learnt]} requests learnt from ({examples} examples) and {requests[held_out]} others to
judge by, under the thresholds {thresholds}: each once under every one throughout (fixed), and once under changing
ones and from there on under every one (changing).

Mean relative error of the steps left, estimated before every step:

| estimate | fixed | against one-shot | changing |
| --- | --- | --- | --- |
{errors}

A new prediction after so many newly unmasked tokens; the one-shot estimate before the first, one step less for every
step in between; fixed and changing together. Cost: the time of all predictions (those due after an iteration
together, under all thresholds) over that of all steps ({step_ms:.0f} ms an iteration in the mean, up to 32 requests).

| tokens | error | against 1 | cost |
| --- | --- | --- | --- |
{granularities}

Chosen, the largest within 5 % of the error at 1: {update_granularity} tokens.

{targets}
"""


def main(
    *,
    model: Annotated[Path, typer.Option(help="Checkpoint directory, with its prompts in heldout.jsonl.")] = DEMO_MODEL,
    predictor: Annotated[Path | None, typer.Option(help="Keep the trained predictor in this directory.")] = None,
    held_out: Annotated[int, typer.Option(help="Requests to judge by.")] = 120,
    threads: Annotated[int, typer.Option(help="CPU threads of a step, as an instance of a small cluster has.")] = 1,
) -> None:
    """Print the tables, and write them to experiments/results/predictor_accuracy.md. Exit status 1: a target missed."""
    with tempfile.TemporaryDirectory() as scratch:
        options = {
            "--model": model,
            "--prompts": model / "heldout.jsonl",
            "--out": predictor or Path(scratch) / "predictor",
            "--held-out": held_out,
            "--threads": threads,
        }
        command = [str(part) for option in options.items() for part in option]
        done = subprocess.run(
            [sys.executable, "-m", "dilaserve", "train-predictor", "--json", *command],
            stdout=subprocess.PIPE,
            check=True,
        )
    report = msgspec.json.decode(done.stdout)
    text = render(report)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    REPORT.write_text(text, encoding="utf-8")
    raise typer.Exit(0 if all(targets(report).values()) else 1)


def targets(report: dict[str, Any]) -> dict[str, bool]:
    """What is to be reached, and whether it is."""
    errors = report["mean_relative_error"]["fixed"]
    own_rate = errors["masks left / own tokens per step so far"]
    cost = report["cost_by_granularity"][str(report["update_granularity"])]
    return {
        f"all features: at least {1 - MOST_ERROR:.0%} below the one-shot error": errors["all features"]
        <= MOST_ERROR * errors["one-shot"],
        "all features: below the extrapolation of the request's own rate": errors["all features"] < own_rate,
        f"cost at the chosen granularity: below {MOST_COST:.0%} of step time": cost < MOST_COST,
    }


def render(report: dict[str, Any]) -> str:
    """The report in Markdown."""
    fixed, changing = report["mean_relative_error"]["fixed"], report["mean_relative_error"]["changing"]
    by_tokens, costs = report["error_by_granularity"], report["cost_by_granularity"]
    return TEXT.format(
        where=f"{environment_header()}; LightGBM {lightgbm.__version__}",
        thresholds=", ".join(report["tokens_per_step"]),
        errors="\n".join(
            f"| {name} | {error:.1%} | {error / fixed['one-shot'] - 1:+.0%} | {changing[name]:.1%} |"
            for name, error in fixed.items()
        ),
        granularities="\n".join(
            f"| {tokens} | {error:.1%} | {error / by_tokens['1'] - 1:+.0%} | {costs[tokens]:.2%} |"
            for tokens, error in by_tokens.items()
        ),
        targets="\n".join(f"- {name}: {'reached' if held else 'MISSED'}" for name, held in targets(report).items()),
        **report,
    )


if __name__ == "__main__":
    typer.run(main)
