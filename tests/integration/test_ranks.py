"""Ranks that fail, that are signalled to stop, and that have unequal free memory."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch

from services.worker.model import model_loading
from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from services.worker.model.model_runner import Runner
from services.worker.model.tensor_parallel import RankGroup, parallel_runner
from shared.errors import BadInput
from tests.support.golden import COPY
from tests.support.random_model import random_decoder
from tests.support.waiting import reached

LIMIT_S = 60.0
DEVICES = [torch.device("cpu")] * 2


class FailsOnRank0(Runner):
    """Fails on rank 0, while the other ranks wait for it as in any forward."""

    def __init__(self, group: RankGroup) -> None:
        super().__init__(random_decoder())
        self._group = group

    def run(self, batch: ForwardBatch) -> Any:  # noqa: ARG002
        if self._group.shard.rank == 0:
            raise RuntimeError("broken")
        return self._group.sum(torch.ones(1))


def exit_status(target: Callable[[], None]) -> int | None:
    """The exit status of an instance in its own process; None if it did not end in time."""
    instance = multiprocessing.get_context("spawn").Process(target=target)
    instance.start()
    instance.join(LIMIT_S)
    ended = instance.exitcode
    instance.kill()
    return ended


@pytest.mark.slow
async def test_a_step_that_fails_on_rank_0_ends_the_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert exit_status(_run_a_step) == 1
    await reached(lambda: not list(tmp_path.iterdir()))


def _run_a_step() -> None:
    with parallel_runner(DEVICES, FailsOnRank0) as ranks:
        ranks.run(cast(ForwardBatch, "a batch"))


@pytest.mark.slow
def test_ranks_use_the_smallest_cache_and_end_cleanly_on_sigterm() -> None:
    ours, theirs = multiprocessing.Pipe()
    instance = multiprocessing.get_context("spawn").Process(target=_serve_until_signalled, args=(theirs,))
    instance.start()
    try:
        assert ours.poll(LIMIT_S)
        assert ours.recv() == 200
        assert instance.pid is not None
        os.killpg(instance.pid, signal.SIGTERM)
        instance.join(LIMIT_S)
        assert instance.exitcode == 0
    finally:
        instance.kill()


def _serve_until_signalled(ready: Connection) -> None:
    os.setsid()
    signalled = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: signalled.set())
    with parallel_runner(DEVICES, _unequal) as ranks:
        ready.send(ranks.cache_tokens)
        signalled.wait(LIMIT_S)


def _unequal(group: RankGroup) -> Runner:
    decoder = random_decoder()
    with patch.object(model_loading, "tokens_that_fit", return_value=300 - 100 * group.shard.rank):
        return Runner(decoder, model_loading._num_cache_tokens(CacheSize(requests=64), decoder, group))


@pytest.mark.slow
def test_a_cache_that_exceeds_the_memory_is_reported_in_one_line() -> None:
    assert exit_status(_request_too_large_a_cache) == 0


def _request_too_large_a_cache() -> None:
    choice = ModelChoice(str(COPY / "llada/seed1"), tp=2, threads=1)
    with pytest.raises(BadInput, match="no memory for a cache"), open_runner(choice, CacheSize(1, tokens=10**12)):
        pass
