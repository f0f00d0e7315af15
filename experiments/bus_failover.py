"""Kill the NATS server that leads the stream of requests, under load, with three servers and with one.

python -m experiments.bus_failover

The servers are processes of this experiment, so that a killed one stays down for a while, like one whose machine is
lost; `dilaserve up --nats-nodes 3` would start it again at once.
"""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Annotated

import httpx
import typer
from nats.js.api import StreamInfo

from dilaserve.stack.bus_users import new_passwords, user_url
from dilaserve.stack.nats import nats_programs
from dilaserve.stack.process import Program
from experiments.fault_load import bus_monitor
from experiments.fault_table.load import ANSWER_S, THRESHOLD, Answer, figures, open_loop, send
from experiments.live_cluster import CELL, SUBJECTS, connected, held_out_requests, live_cluster
from experiments.report import RESULTS, Report, target_list
from experiments.scheduler_failover import longest_pause_s
from shared.bus.client import Bus
from shared.bus.errors import BUS_ERRORS
from shared.bus.subjects import stream_names
from shared.bus.users import BusUser
from shared.logs import configure_logs

BEFORE_S, AFTER_S = 5.0, 15.0  # load before a kill, and after the killed server was started again
MAX_SILENCE_S, MAX_MEDIAN_S = 10.0, 8.0  # accepted with three servers
CURRENT_S = 120.0  # limit until every server has every message again
PROMPTS = 20
OPTIONS = ("--instances", "2x1", "--policy", "dilaserve", "--thresholds", THRESHOLD, "--cache", "dual")
COLUMNS = (
    *("servers", "kill", "streams led", "requests", "repeated", "failed", "lost", "duplicated", "wrong"),
    *("silence, s", "longest, s"),
)
NOTES = """- streams led: the streams and buckets of the cell that the killed server led.
- repeated: requests that their client sent again after a reply with `Retry-After`; failed: requests that ended with
  another error; lost: requests without an answer after two minutes.
- duplicated: requests with two outcomes that differ; wrong: answers with another text than that of the prompt alone.
- silence: the longest time without an answer after the kill; longest: the latency of the slowest request."""


class BusServers:
    """The NATS servers of the experiment, by their addresses."""

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self._programs = {program.name: program for program in programs.values()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in self._programs:
            self.start(name)

    def start(self, name: str) -> None:
        program = self._programs[name]
        assert program.log is not None, "a server has a log"
        with program.log.open("ab") as log:
            self.processes[name] = subprocess.Popen(program.command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)


def main(
    *,
    kills: Annotated[int, typer.Option(min=1, help="Number of kills with three servers.")] = 5,
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 4.0,
    away: Annotated[float, typer.Option(help="Seconds for which a killed server is down.")] = 20.0,
) -> None:
    """Print the table, and write it to experiments/results/bus_failover.md. Exit status 1: a target is missed."""
    configure_logs("bus_failover", level="critical")
    note = f"{rate:g} requests/s, each with an `Idempotency-Key`; a killed server is down for {away:g} s."
    report = Report("The leader of the bus is killed under load", note)
    report.add_columns(*COLUMNS)
    rows: dict[int, list[tuple[int, float]]] = {}
    for servers, count in ((1, 1), (3, kills)):
        rows[servers] = asyncio.run(run(servers, count, rate, away, report))
    silences = [silence_s for _, silence_s in rows[3]]
    targets = {
        "nothing lost, failed, duplicated or wrong": not sum(bad for found in rows.values() for bad, _ in found),
        f"three servers: at most {MAX_SILENCE_S:g} s of silence (found {max(silences):.1f} s)": max(silences)
        <= MAX_SILENCE_S,
        f"three servers: a median of at most {MAX_MEDIAN_S:g} s (found {median(silences):.1f} s)": median(silences)
        <= MAX_MEDIAN_S,
    }
    report.add(NOTES, target_list(targets))
    report.write(RESULTS / "bus_failover.md")
    raise typer.Exit(0 if all(targets.values()) else 1)


async def run(servers: int, kills: int, rate: float, away_s: float, report: Report) -> list[tuple[int, float]]:
    """Add a row for each kill. Returns: of each the number of requests that did not end well, and the silence."""
    os.environ["DILASERVE_STREAM_REPLICAS"] = str(servers)
    prompts = [row.prompt for row in held_out_requests()[:PROMPTS]]
    found = []
    with bus_servers(servers) as (nats, nats_url), live_cluster(*OPTIONS, "--nats-url", nats_url) as cluster:
        async with httpx.AsyncClient(base_url=cluster.url, timeout=ANSWER_S, trust_env=False) as http:
            alone = {prompt: (await send(http, prompt)).text or "" for prompt in prompts}
        for number in range(1, kills + 1):
            led = await leaders(nats_url)
            victim = led[SUBJECTS.stream("REQUESTS")]
            async with bus_monitor(nats_url) as monitor:
                requests = int(rate * (BEFORE_S + away_s + AFTER_S))
                load = asyncio.ensure_future(open_loop(cluster.url, prompts, requests, rate))
                await asyncio.sleep(BEFORE_S)
                killed_s = monotonic()
                nats.kill(victim)
                await asyncio.sleep(away_s)
                nats.start(victim)
                answers: Sequence[Answer] = await load
            row = figures(answers, alone, monitor, killed_s, killed_s + away_s)
            silence_s = longest_pause_s(answers, killed_s)
            bad = [row.failed, row.lost, row.duplicated, row.wrong]
            longest_s = max(answer.latency_s for answer in answers)
            times = [f"{value:.1f}" for value in (silence_s, longest_s)]
            leads = list(led.values()).count(victim)
            report.add_row(servers, number, leads, row.requests, row.repeated, *bad, *times)
            found.append((sum(bad), silence_s))
    return found


@contextmanager
def bus_servers(count: int) -> Iterator[tuple[BusServers, str]]:
    """Run the servers during the body. Yields: them, and the URL for the operator."""
    with tempfile.TemporaryDirectory(prefix="dilaserve-nats-") as directory:
        passwords = new_passwords()
        programs = nats_programs(Path(directory), count, "2m", CELL, passwords)
        user = BusUser.OPERATOR
        servers = BusServers(programs)
        try:
            yield servers, ",".join(user_url(user, passwords[user], address) for address in programs)
        finally:
            servers.close()


async def leaders(nats_url: str) -> dict[str, str]:
    """The server that leads each stream and bucket, once each has all its replicas."""
    async with connected(nats_url) as bus, asyncio.timeout(CURRENT_S):
        while True:
            infos = [await _info(bus, name) for name in sorted(stream_names(SUBJECTS))]
            if all(info is not None and is_current(info) for info in infos):
                return {str(info.config.name): leader_of(info) for info in infos if info is not None}
            await asyncio.sleep(0.5)


async def _info(bus: Bus, stream: str) -> StreamInfo | None:
    try:
        return await bus.js.stream_info(stream)
    except BUS_ERRORS:
        return None


def leader_of(info: StreamInfo) -> str:
    """The name of the server that leads a stream; the only server has the name `nats` here."""
    return str(info.cluster.leader) if info.cluster and info.cluster.name else "nats"


def is_current(info: StreamInfo) -> bool:
    """Whether every replica has all messages of the stream."""
    if info.cluster is None or info.config.num_replicas == 1:
        return True
    replicas = info.cluster.replicas or []
    return len(replicas) + 1 == info.config.num_replicas and all(each.current for each in replicas)


if __name__ == "__main__":
    typer.run(main)
