"""A changing load makes the reconfigurator replace containers on a real Docker Engine; no request may fail.

    python -m experiments.docker_transition --engine compose
    python -m experiments.docker_transition --engine swarm

The latency profile is fixed, so that on any machine the plan for light load is one TP-2 instance and the plan for heavy
load is two TP-1. The load is light, heavy, light, then heavy again; a worker's container is killed during the last
change.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dilaserve.load.client import LoadReply, run_load
from dilaserve.load.workload import LoadRequest, read_requests, rows_load
from experiments.container_cluster import CLUSTERS, ContainerCluster, Places
from experiments.docker_engine import CannotRun, docker_engine
from experiments.report import Report

REQUESTS = Path("models/demo/heldout.jsonl")
LIGHT_RPS, HEAVY_RPS = 0.5, 4.0
SLO_S = 1.5
CHUNK_S = 2.0  # interval at which the rate can change
CHANGE_LIMIT_S = 300.0  # for one change of the instances
TP1, TP2 = ((0,), (1,)), ((0, 1),)


@dataclass(slots=True)
class TransitionRun:
    """The load, its replies, and the report of the events."""

    cluster: ContainerCluster
    report: Report
    start_s: float = field(default_factory=time.monotonic)
    rate: float = LIGHT_RPS
    stop: bool = False
    replies: list[LoadReply] = field(default_factory=list)

    def failed(self) -> int:
        return sum(reply.error is not None for reply in self.replies)

    def note(self, event: str) -> None:
        at_s = f"{time.monotonic() - self.start_s:.1f}"
        self.report.add_row(at_s, event, _text(self.cluster.places()), len(self.replies), self.failed())

    async def load(self, requests: list[LoadRequest]) -> None:
        """Send requests at the current rate until `stop` is set, then wait for their replies."""
        chunks, seed = [], 0
        while not self.stop:
            load = rows_load(requests[seed % len(requests) :], self.rate, CHUNK_S, seed)
            chunks.append(
                asyncio.create_task(run_load(self.cluster.url, load, SLO_S, self.replies.append, self.cluster.key))
            )
            seed += 1
            await asyncio.sleep(CHUNK_S)
        await asyncio.gather(*chunks)

    async def shift(self, rate: float, wanted: Places, *, kill: bool = False) -> None:
        """Change the load and wait until these instances serve."""
        self.rate = rate
        self.note(f"load changes to {rate} requests/s")
        before = self.cluster.places()
        if kill:
            await _until(lambda: self.cluster.places() not in {before, ()})
            self.note("during the change a worker's container is killed")
            self.cluster.kill_worker()
        await _until(lambda: self.cluster.serving() == wanted)
        self.note("the planned instances serve")


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(CHANGE_LIMIT_S):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110  (the engine changes)
            await asyncio.sleep(0.3)


async def _run(run: TransitionRun) -> None:
    load = asyncio.create_task(run.load(read_requests(REQUESTS)))
    try:
        await run.shift(LIGHT_RPS, TP2)
        await run.shift(HEAVY_RPS, TP1)
        await run.shift(LIGHT_RPS, TP2)
        await run.shift(HEAVY_RPS, TP1, kill=True)
    finally:
        run.stop = True
        await load
    run.note("all replies received")


def _text(places: Places) -> str:
    return " ".join(f"TP-{len(gpus)}:{','.join(map(str, gpus))}" for gpus in places) or "none"


def main() -> int:
    """Returns: 0 if no request failed, 1 if one failed, 3 if no Docker Engine is available."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(CLUSTERS), default="compose")
    parser.add_argument("--out", type=Path, help="write the table to this file, as Markdown")
    parser.add_argument("--no-build", action="store_true", help="use the existing images")
    options = parser.parse_args()
    try:
        with docker_engine(), CLUSTERS[options.engine](build=not options.no_build) as cluster:
            cluster.ask_openai_client()
            report = Report(f"Changing containers under load: {options.engine}")
            report.add_columns("s", "event", "containers", "replies", "failed")
            run = TransitionRun(cluster, report)
            asyncio.run(_run(run))
    except CannotRun as error:
        print(f"not run: {error}")
        return 3
    met = sum(reply.slo_met for reply in run.replies)
    moved = sum(reply.migrations for reply in run.replies)
    report.add(f"SLO of {SLO_S} s met by {met} of {len(run.replies)}; {moved} migrations of requests.")
    if options.out:
        report.write(options.out)
    return int(run.failed() > 0)


if __name__ == "__main__":
    sys.exit(main())
