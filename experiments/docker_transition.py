"""A load that shifts makes the reconfigurator change its containers, on a real Docker Engine: no request may fail.

    python -m experiments.docker_transition --engine compose
    python -m experiments.docker_transition --engine swarm

The profile is given, not measured, so that light load is for one TP-2 instance and heavy load for two TP-1, whatever
the machine. Light, heavy, light; then heavy again, and a worker's container is killed in the middle of the change.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dilaserve.load.client import LoadReply, run_load
from dilaserve.load.workload import LoadRequest, poisson_arrivals, read_requests
from experiments.container_cluster import CLUSTERS, ContainerCluster, Places
from experiments.docker_engine import CannotRun, docker_engine
from experiments.machine import environment_header

REQUESTS = Path("models/demo/heldout.jsonl")
LIGHT_RPS, HEAVY_RPS = 0.5, 4.0
SLO_S = 1.5
CHUNK_S = 2.0  # the rate may change after so long
CHANGE_S = 300.0  # limit for one change of the instances
TP1, TP2 = ((0,), (1,)), ((0, 1),)


@dataclass(slots=True)
class TransitionRun:
    """What happens, and when: seconds from the start."""

    cluster: ContainerCluster
    start_s: float = field(default_factory=time.monotonic)
    rate: float = LIGHT_RPS
    stop: bool = False
    replies: list[LoadReply] = field(default_factory=list)
    rows: list[tuple[float, str, str, int, int]] = field(default_factory=list)

    def note(self, what: str) -> None:
        failed = sum(reply.error is not None for reply in self.replies)
        row = (time.monotonic() - self.start_s, what, _said(self.cluster.places()), len(self.replies), failed)
        self.rows.append(row)
        print("{:6.1f} s  {:58} {:14} {:4} replies, {} failed".format(*row), flush=True)

    async def load(self, requests: list[LoadRequest]) -> None:
        """Requests at the rate of the moment, until stopped; then wait for their replies."""
        chunks, seed = [], 0
        while not self.stop:
            arrivals = poisson_arrivals(self.rate, CHUNK_S, seed)
            load = run_load(self.cluster.url, requests[seed % len(requests) :], arrivals, SLO_S, self.replies.append)
            chunks.append(asyncio.create_task(load))
            seed += 1
            await asyncio.sleep(CHUNK_S)
        await asyncio.gather(*chunks)

    async def shift(self, rate: float, wanted: Places, *, kill: bool = False) -> None:
        """Change the load, and wait until these instances serve."""
        self.rate = rate
        self.note(f"load goes to {rate} requests/s")
        before = self.cluster.places()
        if kill:
            await _until(lambda: self.cluster.places() not in {before, ()})
            self.note("the change is under way; a worker's container is killed")
            self.cluster.kill_worker()
        await _until(lambda: self.cluster.serving() == wanted)
        self.note("the planned instances serve")


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(CHANGE_S):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110  (it is the engine that changes)
            await asyncio.sleep(0.3)


async def _shifts(run: TransitionRun) -> None:
    load = asyncio.create_task(run.load(read_requests(REQUESTS)))
    try:
        await run.shift(LIGHT_RPS, TP2)
        await run.shift(HEAVY_RPS, TP1)
        await run.shift(LIGHT_RPS, TP2)
        await run.shift(HEAVY_RPS, TP1, kill=True)
    finally:
        run.stop = True
        await load
    run.note("all replies are there")


def _said(places: Places) -> str:
    return " ".join(f"TP-{len(gpus)}:{','.join(map(str, gpus))}" for gpus in places) or "none"


def _report(run: TransitionRun, engine: str) -> str:
    title = f"# Changing containers under load: {engine}"
    head = ["| s | what | containers | replies | failed |", "| --- | --- | --- | --- | --- |"]
    rows = [
        f"| {at_s:.1f} | {what} | {places} | {replies} | {failed} |" for at_s, what, places, replies, failed in run.rows
    ]
    met = sum(reply.slo_met for reply in run.replies)
    moved = sum(reply.migrations for reply in run.replies)
    last = f"SLO of {SLO_S} s met by {met} of {len(run.replies)}; requests moved {moved} times."
    return "\n".join([title, "", environment_header(), "", *head, *rows, "", last, ""])


def main() -> int:
    """Returns: the exit status: 0 if no request failed, 1 if one did, 3 where no engine can be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(CLUSTERS), default="compose")
    parser.add_argument("--out", type=Path, help="write the table to this file, as Markdown")
    parser.add_argument("--no-build", action="store_true", help="run the images that are there")
    options = parser.parse_args()
    try:
        with docker_engine(), CLUSTERS[options.engine](build=not options.no_build) as cluster:
            cluster.ask_openai_client()
            run = TransitionRun(cluster)
            asyncio.run(_shifts(run))
    except CannotRun as error:
        print(f"not run: {error}")
        return 3
    report = _report(run, options.engine)
    print(report)
    if options.out:
        options.out.write_text(report)
    return int(any(reply.error is not None for reply in run.replies))


if __name__ == "__main__":
    sys.exit(main())
