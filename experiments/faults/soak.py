"""A long run of a mixed load with a fault a minute: every accepted request must end once, and no service may grow."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
from nats.js.errors import KeyNotFoundError

from experiments.faults.accounts import Accounts, read_accounts
from experiments.faults.actions import PROMPTS
from experiments.faults.growth import Sample, growths, sample
from experiments.faults.mixed_load import MixedLoad
from experiments.faults.rows import FAULTS, USUAL, Fault
from experiments.faults.target import LocalTarget, local_target
from experiments.live_cluster import connected
from experiments.report import RESULTS, Report
from shared.tasks import cancel

FAULT_EVERY_S = 60.0
NOTES = """- accepted: requests that the scheduler has received, or that the bus or a reply has confirmed to a client.
- duplicated: outcomes that were stored a second time; different: texts that a client read and that the outcome has not.
- memory and descriptors: medians of the second and of the last quarter of the run, of processes older than 30 s."""


@dataclass(slots=True)
class SoakRun:
    """The measurements of a run."""

    load: MixedLoad
    faults: list[str] = field(default_factory=list)  # in their order
    samples: list[Sample] = field(default_factory=list)


def soak(minutes: float, rate: float, seed: int) -> bool:
    """Print the figures, and write them to experiments/results/soak.md. Returns: whether nothing was lost, served
    twice or grew."""
    report = Report("Soak", f"{minutes:g} minutes, {rate:g} requests per second, seed {seed}, two instances.")
    run, found = asyncio.run(_run(minutes * 60, rate, seed))
    ends = " + ".join(f"{count} {status}" for status, count in sorted(found.statuses.items()))
    report.add(f"accepted: {found.accepted} = {ends} + {found.lost} lost")
    report.add(f"duplicated: {found.duplicated}; different: {found.different}; unfinished: {found.unfinished}")
    report.add(f"faults: {', '.join(run.faults)}")
    report.add("clients:", "\n".join(f"- {end}: {count}" for end, count in sorted(run.load.ends.items())))
    report.add_columns("service", "memory, MB", "later", "descriptors", "later", "flat")
    grown = growths(run.samples, minutes * 60)
    for growth in grown:
        figures = (f"{value:.0f}" for value in (*growth.rss_mb, *growth.descriptors))
        report.add_row(growth.service, *figures, "yes" if growth.is_flat else "NO")
    report.add(NOTES)
    report.write(RESULTS / "soak.md")
    return found.is_right and all(growth.is_flat for growth in grown)


async def _run(seconds: float, rate: float, seed: int) -> tuple[SoakRun, Accounts]:
    async with local_target(USUAL) as target, connected(target.nats_url) as bus, target.client() as http:
        run = SoakRun(MixedLoad(http, bus, PROMPTS, random.Random(seed)))
        beside = [sample(run.samples), _break(target, random.Random(seed), run.faults)]
        tasks = [asyncio.create_task(each) for each in beside]
        try:
            await run.load.run(rate, seconds)
        finally:
            await cancel(tasks)
        return run, await read_accounts(bus, run.load.acknowledged, run.load.texts)


async def _break(target: LocalTarget, rng: random.Random, faults: list[str]) -> None:
    """Apply a random row each FAULT_EVERY_S, of those that kill or stop a service, until cancelled; note its name."""
    rows = [row for row in FAULTS if isinstance(row, Fault) and row.is_of_services]
    while True:
        await asyncio.sleep(FAULT_EVERY_S / 2)
        row = rng.choice(rows)
        faults.append(row.name)
        with suppress(psutil.NoSuchProcess, KeyNotFoundError):  # its process has ended, or no scheduler leads just now
            await row.apply(target)
        await asyncio.sleep(FAULT_EVERY_S / 2)
