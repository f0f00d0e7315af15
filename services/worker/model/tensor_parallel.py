"""Tensor parallelism: one instance as several ranks, each its own process on this machine.

Rank 0 is the process that started the others. Only rank 0 knows requests: it broadcasts each batch, and all ranks run
it together. Gloo is the transport; on CUDA, tensors go over NCCL.

A rank that runs out of memory takes part in the forward's other collectives with zeros, since the other ranks would
otherwise wait forever. In the last one, which gathers the chosen tokens, it contributes NO_TOKEN, so that every rank
reports it and can run the next batch.
"""

import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import structlog
import torch
import torch.distributed as dist
from torch import Tensor

from services.worker.model.decoder import Shard
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import NO_TOKEN, Runner, TokenPredictions, rows_with_top_tokens, truncated_rows
from services.worker.model.row_padding import num_padded_rows
from shared.errors import BadInput

log = structlog.get_logger(__name__)

GROUP_TIMEOUT = timedelta(days=365)  # for the next batch: an idle instance is not an error
STOP_TIMEOUT_S = 10.0  # for the other ranks to end

LoadRank = Callable[["RankGroup"], Runner]
"""Loads one rank's share of the model; must be picklable, since it is sent to the other ranks."""


class RankGroup:
    """The communication of one rank with the others."""

    def __init__(self, shard: Shard, rendezvous: Path, device: torch.device) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
        self.shard = shard
        self.device = device
        self.rendezvous = rendezvous
        url = f"file://{rendezvous}"
        dist.init_process_group("gloo", url, rank=shard.rank, world_size=shard.size, timeout=GROUP_TIMEOUT)
        self._compute = dist.new_group(backend="nccl") if device.type == "cuda" else dist.group.WORLD
        self._num_collectives = 0  # of this forward, so far

    def sum(self, x: Tensor) -> Tensor:
        """Sum a tensor over the ranks, in place."""
        dist.all_reduce(x, group=self._compute)
        self._num_collectives += 1
        return x

    def gather(self, x: Tensor) -> Tensor:
        """The tensors of all ranks: any shape -> [ranks, ...]."""
        parts = [torch.empty_like(x) for _ in range(self.shard.size)]
        dist.all_gather(parts, x, group=self._compute)
        self._num_collectives += 1
        return torch.stack(parts)

    def min(self, number: int) -> int:
        """The minimum of the ranks' numbers."""
        minimum = torch.tensor(number)
        dist.all_reduce(minimum, dist.ReduceOp.MIN)
        return int(minimum)

    def run(self, runner: Runner, batch: ForwardBatch) -> TokenPredictions:
        """Run one forward on this rank. Raises: torch.OutOfMemoryError on every rank if one is out of memory."""
        self._num_collectives = 0
        with suppress(torch.OutOfMemoryError):
            return runner.run(batch)
        # Here, since the caught error keeps the forward's tensors alive. The other ranks wait in the collectives.
        for is_sum, values in missed_collectives(batch, runner, self._num_collectives):
            if is_sum:
                self.sum(values)
            else:
                self.gather(values)
        raise torch.OutOfMemoryError("a rank is out of memory")

    def broadcast(self, batch: ForwardBatch | None = None) -> ForwardBatch | None:
        """Returns: rank 0's `batch`, on every rank; None: the instance stops."""
        objects = [batch]
        dist.broadcast_object_list(objects, src=0)
        return objects[0]


class ParallelRunner:
    """Rank 0's runner: runs each batch on every rank."""

    def __init__(self, runner: Runner, group: RankGroup) -> None:
        self.config = runner.config
        self.cache_tokens = runner.cache_tokens
        self.device = runner.device
        self.dtype = runner.dtype
        self.attention = runner.attention
        self._runner = runner
        self._group = group

    def run(self, batch: ForwardBatch) -> TokenPredictions:
        """Run one forward. If it fails on this rank, the others would wait in it forever, so the instance ends.

        Raises: torch.OutOfMemoryError; the ranks can run another batch.
        """
        self._group.broadcast(batch)
        try:
            return self._group.run(self._runner, batch)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            log.error("a step failed on rank 0; ending the instance", error=repr(error))  # noqa: TRY400 - one line
            shutil.rmtree(self._group.rendezvous.parent, ignore_errors=True)
            os._exit(1)


@contextmanager
def parallel_runner(devices: Sequence[torch.device], load: LoadRank) -> Iterator[ParallelRunner]:
    """Start the other ranks, load the model on all devices, and end the ranks on exit. The death of a rank ends this
    process."""
    size = len(devices)
    with tempfile.TemporaryDirectory(prefix="dilaserve-ranks-") as directory:
        rendezvous = Path(directory) / "rendezvous"
        spawn = multiprocessing.get_context("spawn")
        others = [
            spawn.Process(target=_run_rank, args=(Shard(rank, size), rendezvous, devices[rank], load), daemon=True)
            for rank in range(1, size)
        ]
        closing = threading.Event()
        for process in others:
            process.start()
        threading.Thread(target=_exit_with, args=(others, closing, rendezvous), name="ranks", daemon=True).start()
        try:
            group = RankGroup(Shard(0, size), rendezvous, devices[0])
            yield ParallelRunner(load(group), group)
            closing.set()
            group.broadcast(None)
            dist.destroy_process_group()  # with NCCL, each rank waits for the others here
            for process in others:
                process.join(STOP_TIMEOUT_S)
        finally:
            closing.set()
            for process in others:
                process.kill()  # after a failure here they may still wait for this rank
                process.join()


def _run_rank(shard: Shard, rendezvous: Path, device: torch.device, load: LoadRank) -> None:
    """The main function of every rank except 0."""
    for number in (signal.SIGINT, signal.SIGTERM):  # often sent to all processes; only rank 0 reacts, and drains
        signal.signal(number, signal.SIG_IGN)
    rank_0 = multiprocessing.parent_process()
    assert rank_0 is not None, "rank 0 starts the others"
    threading.Thread(target=_exit_with, args=([rank_0], threading.Event(), rendezvous), daemon=True).start()
    group = RankGroup(shard, rendezvous, device)
    try:
        runner = load(group)
    except BadInput:
        time.sleep(STOP_TIMEOUT_S)  # rank 0 has the same error, reports it and ends this rank
        raise
    while (batch := group.broadcast()) is not None:
        with suppress(torch.OutOfMemoryError):
            group.run(runner, batch)
    dist.destroy_process_group()


def _exit_with(ranks: list[BaseProcess], closing: threading.Event, rendezvous: Path) -> None:
    """Exit when one of these ranks dies, since no rank can continue without the others. Leaves no files behind."""
    wait([process.sentinel for process in ranks])
    if not closing.is_set():
        log.error("a rank of this instance died; ending it")
        shutil.rmtree(rendezvous.parent, ignore_errors=True)
        os._exit(1)


def missed_collectives(batch: ForwardBatch, runner: Runner, num_done: int) -> Iterator[tuple[bool, Tensor]]:
    """The forward's collectives after the first `num_done`: whether each is a sum or a gather, and this rank's values.

    A forward sums attention and MLP of each layer, gathers the logits if a row is truncated, the highest logits and
    those of labels if clients want them, the mean embeddings of canvases, and the tokens.
    """
    config, count = runner.config, len(batch.rows)
    fed, kept = (len(batch.tokens), config.width), (num_padded_rows(count), config.width)
    sums = list[tuple[int, ...]]([fed] * (2 * config.num_layers - 2) + [kept] * 2)
    if config.canvas:  # the dense part and the experts of a layer side by side
        kept = count, config.width
        sums = [*[fed, (2, *fed)] * (config.num_layers - 1), kept, (2, *kept)]
    for summed in sums[num_done:]:
        yield True, torch.zeros(summed, dtype=runner.dtype, device=runner.device)
    gathers = list[tuple[tuple[int, ...], torch.dtype]]()
    if len(truncated_rows(batch)) and not config.canvas:
        gathers.append(((count, runner.decoder.head_rows), runner.dtype))
    if num_top := len(rows_with_top_tokens(batch)):
        gathers.append(((2, num_top, int(batch.top_logprobs.max())), torch.float64))
    if num_scored := len(batch.scored_rows):
        gathers.append(((num_scored,), torch.float64))
    if config.canvas:
        gathers.append((kept, runner.dtype))
    for shape, dtype in gathers[max(0, num_done - len(sums)) :]:
        yield False, torch.zeros(shape, dtype=dtype, device=runner.device)
    if num_done <= len(sums) + len(gathers):
        # As `best_of` or `read_canvas` returns
        best = torch.zeros((6 if config.canvas else 4, count), dtype=torch.float64, device=runner.device)
        best[3 if config.canvas else 2] = NO_TOKEN
        yield False, best
