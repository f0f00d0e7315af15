"""Run all studies, one on each core, and write docs/paper.md from their stored figures.

python -m experiments.paper [--quick] [--stored]
"""

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from time import process_time
from typing import Annotated

import typer

from experiments import real_world_trace
from experiments.paper.real_world import VERDICT, policies, study
from experiments.paper.study import Out, Quick, Study, place
from experiments.report import markdown_table

STUDIES = (
    "introduction",
    "benchmark_rates",
    "benchmark_slos",
    "controller",
    "lengths",
    "step_prediction",
    "prediction_error",
    "migration",
    "granularity",
    "no_cache",
    "reconfiguration",
)
WITHOUT_STUDY = (
    ("DLMs against autoregressive models; latency by TP degree", "not possible without GPUs: both are measurements"),
    (
        "the overhead of predictions",
        "differs: batches of predictions take about 0.1 % of the time of the demo model's steps, in the paper 20 % "
        "([predictor_accuracy](../experiments/results/predictor_accuracy.md))",
    ),
    (
        "the judge's scores",
        "not possible without GPUs: the simulator has no text. `dilaserve bench` has replies judged",
    ),
)
INTRODUCTION = Path(__file__).with_name("report.md")


def main(
    *,
    quick: Quick = False,
    stored: Annotated[bool, typer.Option("--stored", help="Run nothing: write the page from stored figures.")] = False,
    out: Out = None,
) -> None:
    """Run every study, but no run that build/paper has, and write docs/paper.md with its plots."""
    directory = place(quick=quick, out=out)
    if not stored:
        tasks = {
            **{name: partial(real_world_trace.run, directory, name, quick=quick) for name in real_world_trace.SEEDS},
            **{name: partial(_run, name, directory, quick=quick) for name in STUDIES},
        }
        with ProcessPoolExecutor() as processes:
            for ended in as_completed([processes.submit(_timed, name, run) for name, run in tasks.items()]):
                print(ended.result(), flush=True)
    report = directory / "docs" / "paper.md"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(page(directory), encoding="utf-8")
    print(f"\nwritten: {report}")


def _run(name: str, directory: Path, *, quick: bool) -> None:
    _study(name).run(directory, quick=quick)


def _timed(name: str, run: Callable[[], None]) -> str:
    """Run a study. Returns: its name and CPU time."""
    start_s = process_time()
    run()
    return f"{name}: {(process_time() - start_s) / 60:.1f} CPU minutes"


def _study(name: str) -> Study:
    found: Study = importlib.import_module(f"experiments.paper.{name}").STUDY
    return found


def studies() -> Sequence[Study]:
    return [_study(name) for name in STUDIES]


def page(directory: Path) -> str:
    """The text of docs/paper.md, with the figures stored below the directory."""
    rows = [("Real-world workload", VERDICT), *((each.title, each.verdict) for each in studies()), *WITHOUT_STUDY]
    overview = markdown_table(("table or figure", "verdict"), rows)
    first = INTRODUCTION.read_text("utf-8").format(
        overview=overview, policies=policies(), **{name: study(directory, name) for name in real_world_trace.SEEDS}
    )
    return "\n".join([first, *(each.section(directory) for each in studies())])


if __name__ == "__main__":
    typer.run(main)
