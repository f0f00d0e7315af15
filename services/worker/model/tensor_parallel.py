"""Tensor parallelism: one instance as several ranks, each its own process of this machine.

Rank 0 is the process that started the others. It alone knows requests; it hands each batch to the others, and all run
it together. Gloo carries everything on a CPU; on CUDA, NCCL carries what the devices compute.
"""

import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import structlog
import torch
import torch.distributed as dist
from torch import Tensor

from services.worker.engine.batch import ForwardBatch
from services.worker.model.decoder import Shard
from services.worker.model.model_runner import Runner, TokenPredictions
from shared.errors import BadInput

log = structlog.get_logger(__name__)

GROUP_TIMEOUT = timedelta(days=365)  # how long a rank waits for its next batch: an idle instance is no error
STOP_S = 10.0  # how long the others may take to end

LoadRank = Callable[["RankGroup"], Runner]
"""Loads one rank's share of the model; sent to the other ranks, so it must pickle."""


class RankGroup:
    """The ranks of this instance, as one of them sees it."""

    def __init__(self, shard: Shard, rendezvous: Path, device: torch.device) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
        self.shard = shard
        self.device = device
        place = f"file://{rendezvous}"
        dist.init_process_group("gloo", place, rank=shard.rank, world_size=shard.size, timeout=GROUP_TIMEOUT)
        self._compute = dist.new_group(backend="nccl") if device.type == "cuda" else dist.group.WORLD

    def sum(self, x: Tensor) -> Tensor:
        """Over the ranks, in place."""
        dist.all_reduce(x, group=self._compute)
        return x

    def gather(self, x: Tensor) -> Tensor:
        """Every rank's `x`, one after another: any shape -> [ranks, ...]."""
        parts = [torch.empty_like(x) for _ in range(self.shard.size)]
        dist.all_gather(parts, x, group=self._compute)
        return torch.stack(parts)

    def least(self, number: int) -> int:
        """The least of what the ranks bring."""
        found = torch.tensor(number)
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return int(found)

    def share(self, batch: ForwardBatch | None = None) -> ForwardBatch | None:
        """Rank 0's batch, on every rank; None: there will be no more."""
        box = [batch]
        dist.broadcast_object_list(box, src=0)
        return box[0]


class ParallelRunner:
    """Rank 0's view of all of them: runs a batch on every rank."""

    def __init__(self, own: Runner, group: RankGroup) -> None:
        self.config = own.config
        self.cache_tokens = own.cache_tokens
        self.device = own.device
        self.dtype = own.dtype
        self._own = own
        self._group = group

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        """One forward. Where it fails on this rank the others wait in it for good: then the instance ends."""
        self._group.share(batch)
        try:
            return self._own.run(batch)
        except Exception as error:
            log.error("a step failed on rank 0; ending the instance", error=repr(error))  # noqa: TRY400 - one line
            os._exit(1)


@contextmanager
def parallel_runner(devices: Sequence[torch.device], load: LoadRank) -> Iterator[ParallelRunner]:
    """Start the other ranks, each on its device, load the model on all, and end them at the end. The death of one ends
    this process."""
    size = len(devices)
    with tempfile.TemporaryDirectory(prefix="dilaserve-ranks-") as directory:
        rendezvous = Path(directory) / "rendezvous"
        spawn = multiprocessing.get_context("spawn")
        others = [
            spawn.Process(target=_serve, args=(Shard(rank, size), rendezvous, devices[rank], load), daemon=True)
            for rank in range(1, size)
        ]
        closing = threading.Event()
        for process in others:
            process.start()
        threading.Thread(target=_watch, args=(others, closing, rendezvous), name="ranks", daemon=True).start()
        try:
            group = RankGroup(Shard(0, size), rendezvous, devices[0])
            yield ParallelRunner(load(group), group)
            closing.set()
            group.share(None)
            dist.destroy_process_group()  # on all at the same time: with NCCL each waits for the others
            for process in others:
                process.join(STOP_S)
        finally:
            closing.set()
            for process in others:
                process.kill()  # after a failure they may wait for this rank, whose process ends then, too
                process.join()


def _serve(shard: Shard, rendezvous: Path, device: torch.device, load: LoadRank) -> None:
    """The life of any rank but 0."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes at once, they are for rank 0, which drains
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_rank_0, args=(rendezvous,), name="rank 0", daemon=True).start()
    group = RankGroup(shard, rendezvous, device)
    try:
        runner = load(group)
    except BadInput:
        time.sleep(STOP_S)  # rank 0 meets the same, tells of it and ends this one
        raise
    while (batch := group.share()) is not None:
        runner.run(batch)
    dist.destroy_process_group()


def _end_with_rank_0(rendezvous: Path) -> None:
    """However it ended: until all have met, nothing else would tell."""
    rank_0 = multiprocessing.parent_process()
    assert rank_0 is not None, "the others are started by rank 0"
    wait([rank_0.sentinel])
    _end(rendezvous)


def _watch(others: list[BaseProcess], closing: threading.Event, rendezvous: Path) -> None:
    """Ranks cannot go on without one of them, nor wait for it: then the instance ends, to be started anew."""
    wait([process.sentinel for process in others])
    if not closing.is_set():
        log.error("a rank of this instance died; ending it")
        _end(rendezvous)


def _end(rendezvous: Path) -> None:
    """At once, and leave nothing behind."""
    shutil.rmtree(rendezvous.parent, ignore_errors=True)
    os._exit(1)
