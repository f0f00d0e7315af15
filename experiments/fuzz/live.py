"""Sends damaged bodies and messages to a running cluster. Its processes must survive, and it must serve afterwards."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import httpx
import psutil

from experiments.fuzz.mutations import mutated_message
from experiments.fuzz.routes import ROUTES
from experiments.fuzz.samples import SAMPLES, plain
from experiments.live_cluster import SUBJECTS, LiveCluster, chat_body, connected, live_cluster
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.errors import BadInput
from shared.messages.cell import CellConfig
from shared.messages.checkpoints import Checkpoint
from shared.messages.gateway import Batch, BatchWork, Claim, Conversation, GatewayUse
from shared.messages.health import ServiceHealth
from shared.messages.instances import Control, Instance
from shared.messages.launch import LaunchOrder
from shared.messages.models import CanaryRecord, WeightsRecord
from shared.messages.plans import PlanRecord, ReconfiguratorStats
from shared.messages.predict import PredictSteps
from shared.messages.requests import Arrival, Cancel, Guesses, Outcome, Progress, Request, UnfinishedQuery
from shared.messages.stats import SchedulerStats
from shared.messages.steps import StepJobs, StepResults

Row = tuple[str, int, int, Counter[str]]  # entry point, inputs, refused ones (of messages unknown: 0), faults

CLIENTS = 4
TIMEOUT_S = 60.0
BURST = 20  # messages between two looks at the processes
QUERIES = (PredictSteps, UnfinishedQuery)  # messages that are answered
# A well-formed one of these is obeyed: only NATS users could prevent that. So only undecodable ones are sent.
ORDERS = (StepJobs, Control, LaunchOrder, Instance, SchedulerStats, WeightsRecord, CanaryRecord, CellConfig)


async def fuzz_cluster(seed: int, seconds: float) -> list[Row]:
    """Half of the time for the bodies, the other half for the messages."""
    with live_cluster("--policy", "dilaserve", "--cache", "dual") as cluster:
        rows = [await _fuzz_route(cluster, path, seed, seconds / 2 / len(ROUTES)) for path in ROUTES]
        return [*rows, *await _fuzz_subjects(cluster, seed, seconds / 2)]


async def _fuzz_route(cluster: LiveCluster, path: str, seed: int, seconds: float) -> Row:
    rng, end_s = random.Random(f"{seed} {path}"), time.monotonic() + seconds
    statuses: Counter[int] = Counter()
    faults: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=cluster.url, timeout=TIMEOUT_S, trust_env=False) as http:

        async def one_client() -> None:
            while time.monotonic() < end_s:
                sent = ROUTES[path](rng)
                example = f"for example {sent.path[:300]} {sent.content[:300]!r}"
                try:
                    headers = {"Content-Type": sent.content_type}
                    reply = await http.post(sent.path, content=sent.content, headers=headers)
                except httpx.HTTPError as error:
                    faults[f"{path}: {error!r}, {example}"] += 1
                    continue
                statuses[reply.status_code] += 1
                if reply.status_code >= 500:
                    faults[f"{path}: {reply.status_code} {reply.text[:200]}, {example}"] += 1

        await asyncio.gather(*(one_client() for _ in range(CLIENTS)))
    refused = sum(count for status, count in statuses.items() if 400 <= status < 500)
    return f"gateway: POST {path}", statuses.total(), refused, faults


async def _fuzz_subjects(cluster: LiveCluster, seed: int, seconds: float) -> list[Row]:
    async with connected(cluster.nats_url) as bus:
        records = await (await bus.bucket(SUBJECTS.models_bucket)).keys()
        targets = message_targets(await _instance_id(cluster), records)
        rows = [await _fuzz_subject(bus, kind, subject, seed, seconds / len(targets)) for kind, subject in targets]
        for pid in _processes()["worker"]:
            psutil.Process(pid).kill()  # those that start now read the records of the model
        rows.append(await _serves(cluster))
    return rows


async def _fuzz_subject(bus: Bus, kind: type[Any], subject: str, seed: int, seconds: float) -> Row:
    rng, content, faults = random.Random(f"{seed} {kind.__name__}"), plain(SAMPLES[kind]), Counter[str]()
    processes, inputs, end_s = _processes(), 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        for data in (mutated_message(content, rng) for _ in range(BURST)):
            if kind in ORDERS and _is_valid(data, kind):
                continue
            await bus.nc.publish(subject, data, reply=bus.nc.new_inbox() if kind in QUERIES else "")
            inputs += 1
        await bus.nc.flush()
        await asyncio.sleep(0.05)
        now = _processes()
        for name in sorted(name for name, pids in processes.items() if pids - now.get(name, set())):
            faults[f"a damaged {kind.__name__} ended {name}"] += 1
        processes = now
    return f"bus: {kind.__name__}", inputs, 0, faults


async def _serves(cluster: LiveCluster) -> Row:
    """Whether the cluster serves a request after all messages, by a worker that starts after them."""
    faults = Counter[str]()
    async with httpx.AsyncClient(base_url=cluster.url, timeout=TIMEOUT_S, trust_env=False) as http:
        try:
            (await http.post("/v1/chat/completions", json=chat_body("2+2?", max_tokens=16))).raise_for_status()
        except httpx.HTTPError as error:
            faults[f"a valid request after all messages: {error!r}"] += 1
    return "a valid request afterwards", 1, 0, faults


def message_targets(instance_id: str, records: Sequence[str]) -> list[tuple[type[Any], str]]:
    """Every message that a service reads from a subject that it chose before, with this subject. `records`: the keys of
    those of the model."""

    def key(bucket: str, name: str) -> str:
        return f"$KV.{bucket}.{name}"

    of_request: list[tuple[type[Any], Callable[[str], str]]] = [
        (Cancel, SUBJECTS.cancel),
        (Progress, SUBJECTS.progress),
        (Guesses, SUBJECTS.guesses),
        (Outcome, SUBJECTS.outcomes),
        (Checkpoint, SUBJECTS.checkpoints),
    ]
    return [
        (Request, SUBJECTS.requests),
        (Arrival, SUBJECTS.arrivals),
        *((kind, subject("r-1")) for kind, subject in of_request),
        (CellConfig, SUBJECTS.config),
        (PredictSteps, SUBJECTS.predict),
        (StepJobs, SUBJECTS.steps(instance_id)),
        (StepResults, SUBJECTS.step_results(instance_id)),
        (Control, SUBJECTS.control(instance_id)),
        (LaunchOrder, SUBJECTS.launch("local")),
        (PlanRecord, SUBJECTS.plans("20260101T000000-000001")),
        (SchedulerStats, SUBJECTS.stats("scheduler")),
        (ReconfiguratorStats, SUBJECTS.stats("reconfigurator")),
        (ServiceHealth, SUBJECTS.health("worker")),
        (UnfinishedQuery, SUBJECTS.unfinished),
        (GatewayUse, SUBJECTS.key_use),
        (BatchWork, SUBJECTS.batches),
        (Instance, key(SUBJECTS.instances_bucket, "a-1")),
        (Claim, key(SUBJECTS.claims_bucket, "r-1")),
        (Conversation, key(SUBJECTS.conversations_bucket, "r-1")),
        (Batch, key(SUBJECTS.batches_bucket, "batch-1")),
        *(
            (WeightsRecord if name.startswith("weights.") else CanaryRecord, key(SUBJECTS.models_bucket, name))
            for name in records
        ),
    ]


async def _instance_id(cluster: LiveCluster) -> str:
    async with httpx.AsyncClient(base_url=cluster.url, trust_env=False) as http:
        nodes = (await http.get("/cluster")).raise_for_status().json()["nodes"]
    return str(nodes[0]["instances"][0]["id"])


def _is_valid(data: bytes, kind: type[Any]) -> bool:
    try:
        decode(data, kind)
    except BadInput:
        return False
    return True


def _processes() -> dict[str, set[int]]:
    """The process ids of each service below this process."""
    found: dict[str, set[int]] = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            for word in child.cmdline():
                if word.startswith("services."):
                    found.setdefault(word.removeprefix("services."), set()).add(child.pid)
    return found
