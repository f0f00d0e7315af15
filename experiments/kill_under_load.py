"""kill -9 of the scheduler, of a predictor, of a worker, each while the embedded cluster serves requests through HTTP.

python -m experiments.kill_under_load

After each kill the load goes on until the service is there again and serves. No request may fail, none may have more
than one outcome, and what was unmasked before the kill is not computed again.
"""

import asyncio
import tempfile
from pathlib import Path
from statistics import mean
from typing import Annotated

import psutil
import typer

from dilaserve.commands.up import DEMO_MODEL
from dilaserve.load.workload import read_requests
from dilaserve.stack.data_dir import read_addresses
from experiments.fault_load import FaultLoad, StatsWatch, asking, kill_service, recovered, until, watching
from experiments.live_cluster import live_cluster
from experiments.machine import environment_header
from shared.logs import configure_logs

REPORT = Path(__file__).parent / "results" / "kill_under_load.md"
RECOVERY_S = 90.0
HEAD = (
    "| killed | requests | failed | outcomes | twice | in flight | resumed | steps kept | latency before, s "
    "| of those in flight, s | added, s | longest, s | fallbacks |\n" + "| --- " * 13 + "|"
)
TEXT = """# Processes killed under load

{machine}

{clients} clients, each sending its next request when it has the last reply; blocks of 8 tokens, policy dilaserve.

{table}

- outcomes, twice: messages on `outcomes.*`, and requests with more than one.
- in flight: requests sent before the kill and answered after it. Resumed: those that a new scheduler took up from a
  checkpoint, with so many steps in all that were not run again. An instance's requests keep every token: the scheduler
  has them.
- added: the mean latency of those in flight above the mean before.
- fallbacks: estimates that the one-shot estimate stood in for, by the scheduler's own count; the run ends when new
  predictions come.
"""


def main(
    *,
    victims: Annotated[str, typer.Option(help="Services to kill, one run each.")] = "scheduler,predictor,worker",
    clients: Annotated[int, typer.Option(help="Requests under way at any time.")] = 16,
    before: Annotated[float, typer.Option(help="Seconds of load before the kill.")] = 8.0,
) -> None:
    """Print the table, and write it to experiments/results/kill_under_load.md. Exit status 1: a request was lost."""
    configure_logs("kill_under_load", level="error")
    print(f"{environment_header()}\n\n{HEAD}", flush=True)
    lines, lost = [], 0
    for victim in victims.split(","):
        with tempfile.TemporaryDirectory(prefix="dilaserve-") as directory:
            data_dir = Path(directory) / "data"
            with live_cluster("--policy", "dilaserve", "--cache", "dual", "--data-dir", data_dir) as url:
                line, failed = asyncio.run(run(victim, url, read_addresses(data_dir).nats_url, clients, before))
        print(line, flush=True)
        lines.append(line)
        lost += failed
    table = "\n".join([HEAD, *lines])
    REPORT.write_text(TEXT.format(machine=environment_header(), clients=clients, table=table), encoding="utf-8")
    raise typer.Exit(1 if lost else 0)


async def run(victim: str, url: str, nats_url: str, clients: int, before_s: float) -> tuple[str, int]:
    """One kill. Returns: the row of the table, and how many requests failed or had not exactly one outcome."""
    prompts = [row.prompt for row in read_requests(DEMO_MODEL / "heldout.jsonl")]
    async with watching(nats_url) as watch:
        async with asking(url, prompts, clients) as load:
            await asyncio.sleep(before_s)
            kill = await kill_service(victim, psutil.Process(), watch)
            await until(lambda: recovered(kill, watch, load), RECOVERY_S)
        await until(lambda: len(watch.outcomes) >= len(load.replies), RECOVERY_S)
    return report(victim, load, watch, kill.at_s)


def report(victim: str, load: FaultLoad, watch: StatsWatch, killed_s: float) -> tuple[str, int]:
    failed = load.failed()
    twice = sum(count > 1 for count in watch.outcomes.values())
    earlier = [reply for reply in load.replies if reply.ended_s <= killed_s]
    hit = [reply for reply in load.replies if reply.sent_s <= killed_s < reply.ended_s]
    kept = [steps for steps in watch.kept_steps.values() if steps]
    before_s, hit_s = mean(r.ended_s - r.sent_s for r in earlier), mean(r.ended_s - r.sent_s for r in hit)
    row = (
        f"| {victim} | {len(load.replies)} | {failed} | {sum(watch.outcomes.values())} | {twice} | {len(hit)} "
        f"| {len(kept)} | {sum(kept)} | {before_s:.2f} | {hit_s:.2f} | {hit_s - before_s:.2f} "
        f"| {max(r.ended_s - r.sent_s for r in hit):.2f} | {max(s.predictor_fallbacks for s in watch.stats)} |"
    )
    return row, failed + twice


if __name__ == "__main__":
    typer.run(main)
