"""Send damaged messages and bodies to every entry point, and count the ones that are not refused properly.

python -m experiments.fuzz

Half of the time goes to the code behind the bus, in this process. The other half goes to a running cluster: bodies to
its REST routes, messages to its subjects. Exit status 1: an error other than BadInput, a 5xx, or a process that ended.
"""

import asyncio
import random
import time
import traceback
from collections import Counter
from typing import Annotated

import typer

from experiments.fuzz.live import fuzz_cluster
from experiments.fuzz.mutations import mutated_message
from experiments.fuzz.receivers import RECEIVERS, Receiver
from experiments.fuzz.samples import SAMPLES, plain
from experiments.report import RESULTS, Report
from shared.errors import BadInput
from shared.logs import configure_logs


def main(
    *,
    minutes: Annotated[float, typer.Option(help="Length of the run.", min=0.05)] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the damages.")] = 1,
) -> None:
    """Print a table of inputs and faults, and write it to experiments/results/fuzz.md."""
    configure_logs("fuzz", level="critical")
    report = Report(
        "Damaged input", f"{minutes:g} minutes, seed {seed}. refused: BadInput, a 4xx, or a dropped message."
    )
    report.add_columns("entry point", "inputs", "refused", "faults")
    each_s = minutes * 60 / 2 / len(RECEIVERS)
    faults: Counter[str] = Counter()
    for receiver in RECEIVERS:
        inputs, refused, found = fuzz_receiver(receiver, random.Random(f"{seed} {receiver.name}"), each_s)
        report.add_row(receiver.name, inputs, refused, found.total())
        faults += found
    for name, inputs, refused, found in asyncio.run(fuzz_cluster(seed, minutes * 60 / 2)):
        report.add_row(name, inputs, refused, found.total())
        faults += found
    if faults:
        report.add("\n".join(f"- {count} times {fault}" for fault, count in faults.most_common()))
    report.write(RESULTS / "fuzz.md")
    raise typer.Exit(1 if faults else 0)


def fuzz_receiver(receiver: Receiver, rng: random.Random, seconds: float) -> tuple[int, int, Counter[str]]:
    """Returns: the numbers of inputs and of refusals, and the faults, each with the data of its first case."""
    content = plain(SAMPLES[receiver.kind])
    inputs = refused = 0
    faults: Counter[str] = Counter()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        data = mutated_message(content, rng)
        inputs += 1
        try:
            receiver.receive(data)
        except BadInput:
            refused += 1
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            faults[f"{receiver.name}: {error!r} at {place.name}, line {place.lineno}"] += 1
    return inputs, refused, faults


if __name__ == "__main__":
    typer.run(main)
