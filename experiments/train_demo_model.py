"""Trains a demo model, or evaluates the existing one.

All data is generated. An interrupted training continues from its last checkpoint.
"""

import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.demo_model.evaluate import HeldOutQuestion, read_questions, score, table
from experiments.demo_model.evaluate_tasks import TASKS_PER_KIND, task_table
from experiments.demo_model.publish import (
    HELD_OUT_FILE,
    STEPS_FILE,
    held_out_questions,
    publish,
    read_model,
    write_questions,
    write_steps,
)
from experiments.demo_model.task_tokenizer import build_task_tokenizer
from experiments.demo_model.tokenizer import build_tokenizer
from experiments.demo_model.train import BLOCK_RECIPE, Recipe, Training, train

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
TASK_THRESHOLDS = (0.7, 0.9)
CHECKPOINT_EVERY = 250  # steps
SCORE_EVERY = 1500  # steps
SCORE_COUNT = 60  # held-out problems that are scored during the training
EXAMPLE = "Example: python -m experiments.train_demo_model --out models/demo --evaluate"

app = typer.Typer(add_completion=False)
console = Console()


@app.command(epilog=EXAMPLE)
def main(
    *,
    block_causal: Annotated[bool, typer.Option("--block-causal", help="The block-causal model.")] = False,
    out: Annotated[Path | None, typer.Option(help="Directory [default: models/demo or models/demo-block].")] = None,
    state: Annotated[Path | None, typer.Option(help="Checkpoint to continue from [default: below .data].")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps [default: the recipe's].")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of problems, initial weights and masks.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Only evaluate the model in --out.")] = False,
) -> None:
    """Train a demo model into --out, or with --evaluate print its exact match and steps by threshold."""
    torch.set_num_threads(threads)
    name, recipe = ("demo-block", BLOCK_RECIPE) if block_causal else ("demo", Recipe())
    directory = out or Path("models") / name
    try:
        if not evaluate:
            recipe = replace(recipe, steps=steps or recipe.steps, seed=seed)
            run_training(recipe, state or Path(".data") / name / "state.pt", directory)
        run_evaluation(directory, threads)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def run_training(recipe: Recipe, state: Path, out: Path) -> None:
    """Train to the recipe's last step and write the model directory."""
    tokenizer = build_task_tokenizer(recipe.seed) if recipe.block_length else build_tokenizer(recipe.seed)
    training = Training(tokenizer, recipe)
    if state.exists():
        training.resume(state)
        console.print(f"continuing from step {training.step} of {state}")
    questions = held_out_questions(recipe.seed)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.3f}"), console=console) as progress:
        task = progress.add_task("train", total=recipe.steps, completed=training.step, loss=0.0)

        def after_step(training: Training, loss: float) -> None:
            progress.update(task, completed=training.step, loss=loss)
            if training.step % CHECKPOINT_EVERY == 0:
                training.save(state)
            if training.step % SCORE_EVERY == 0:
                print_score(training, questions[:SCORE_COUNT])

        train(training, after_step)
    training.save(state)
    publish(training.average, tokenizer, out)
    write_questions(questions, out / HELD_OUT_FILE)


def print_score(training: Training, questions: list[HeldOutQuestion]) -> None:
    """Print the current quality of the model."""
    result = score(training.average, training.tokenizer, questions, THRESHOLDS[-1])
    console.print(
        f"step {training.step}: exact match {result.exact_match:.0%} of {len(questions)} held-out problems "
        f"at threshold {result.threshold}, {result.mean_steps:.1f} steps"
    )


def run_evaluation(directory: Path, threads: int) -> None:
    """Print the tables of the model card; write the steps table of the block-causal model."""
    decoder, tokenizer = read_model(directory)
    questions = read_questions(directory / HELD_OUT_FILE)
    started_s = time.monotonic()
    scores = [score(decoder, tokenizer, questions, threshold) for threshold in THRESHOLDS]
    spent_s = time.monotonic() - started_s
    is_block = decoder.config.is_block_causal
    how = "exact cache, to the end of the text" if is_block else "without a cache, blocks of 32, output of 64"
    typer.echo(f"{len(questions)} held-out problems of {directory}, {how}")
    typer.echo(f"{platform.machine()}, {threads} threads, torch {torch.__version__}, {spent_s:.0f} s")
    typer.echo(table(scores))
    if is_block:
        write_steps(scores, directory / STEPS_FILE)
        typer.echo(f"\n{TASKS_PER_KIND} tasks of each kind\n\n{task_table(decoder, tokenizer, 0, TASK_THRESHOLDS)}")


if __name__ == "__main__":
    app()
