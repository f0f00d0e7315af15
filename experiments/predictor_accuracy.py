"""The error of the predicted steps left, against the estimates that predictions replace; and the cost of predictions.

Trains a model's predictor again and evaluates it with other requests. By default the demo model's; for the block-causal
one: --model models/demo-block --out experiments/results/predictor_accuracy_block_demo.md

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

from dilaserve.stack.up_options import DEMO_MODEL
from experiments.report import RESULTS, environment_header, markdown_table, target_list

MAX_ERROR = 0.7  # share of the one-shot error
MAX_COST = 0.01  # share of step time, at the chosen granularity

TEXT = """# Accuracy of the predicted steps left

{where}

Predictor {predictor}: trained on {requests[learnt]} requests ({examples} examples), evaluated with {requests[held_out]}
others, at the thresholds {thresholds}. Each of these runs once at every fixed threshold (fixed), and once at changing
thresholds and, from each step, to its end at every threshold (changing).

Mean relative error of the steps left, estimated before every step:

{errors}

A new prediction is made after this number of newly unmasked tokens. Before the first prediction the one-shot estimate
is used; between two predictions each step subtracts one. Fixed and changing together. Cost: the time of all
predictions (those due after an iteration together, for all thresholds) over the time of all steps ({step_ms:.0f} ms per
iteration on average, up to 32 requests).

{granularities}

Chosen, the largest within 5 % of the error at 1: {update_granularity} tokens.

{targets}
"""


def main(
    *,
    model: Annotated[Path, typer.Option(help="Checkpoint directory, with its prompts in heldout.jsonl.")] = DEMO_MODEL,
    predictor: Annotated[Path | None, typer.Option(help="Keep the trained predictor in this directory.")] = None,
    held_out: Annotated[int, typer.Option(help="Requests of the evaluation.")] = 120,
    threads: Annotated[int, typer.Option(help="CPU threads of a step, as for an instance of a small cluster.")] = 1,
    out: Annotated[Path, typer.Option(help="File of the report.")] = RESULTS / "predictor_accuracy.md",
) -> None:
    """Print the tables, and write them to a file. Exit status 1: a target missed."""
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
    out.write_text(text, encoding="utf-8")
    raise typer.Exit(0 if all(targets(report).values()) else 1)


def targets(report: dict[str, Any]) -> dict[str, bool]:
    """Each target, and whether it is reached."""
    errors = report["mean_relative_error"]["fixed"]
    own_rate = errors["masks left / own tokens per step so far"]
    cost = report["cost_by_granularity"][str(report["update_granularity"])]
    return {
        f"all features: at least {1 - MAX_ERROR:.0%} below the one-shot error": errors["all features"]
        <= MAX_ERROR * errors["one-shot"],
        "all features: below the extrapolation of the request's own rate": errors["all features"] < own_rate,
        f"cost at the chosen granularity: below {MAX_COST:.0%} of step time": cost < MAX_COST,
    }


def render(report: dict[str, Any]) -> str:
    """The report in Markdown."""
    fixed, changing = report["mean_relative_error"]["fixed"], report["mean_relative_error"]["changing"]
    by_tokens, costs = report["error_by_granularity"], report["cost_by_granularity"]
    return TEXT.format(
        where=f"{environment_header()}; LightGBM {lightgbm.__version__}",
        thresholds=", ".join(report["tokens_per_step"]),
        errors=markdown_table(
            ("estimate", "fixed", "against one-shot", "changing"),
            (
                (name, f"{error:.1%}", f"{error / fixed['one-shot'] - 1:+.0%}", f"{changing[name]:.1%}")
                for name, error in fixed.items()
            ),
        ),
        granularities=markdown_table(
            ("tokens", "error", "against 1", "cost"),
            (
                (tokens, f"{error:.1%}", f"{error / by_tokens['1'] - 1:+.0%}", f"{costs[tokens]:.2%}")
                for tokens, error in by_tokens.items()
            ),
        ),
        targets=target_list(targets(report)),
        **report,
    )


if __name__ == "__main__":
    typer.run(main)
