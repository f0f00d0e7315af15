"""Ranks that fail on the way."""

import multiprocessing
from typing import Any, cast

import torch

from services.worker.batch import Batch
from services.worker.parallel import Group, parallel_runner
from services.worker.runner import Runner
from tests.support.random_model import random_decoder

LIMIT_S = 60.0


class FailsOnRank0(Runner):
    """The others wait for it, as in any forward."""

    def __init__(self, group: Group) -> None:
        super().__init__(random_decoder())
        self._group = group

    def run(self, batch: Batch) -> Any:  # noqa: ARG002
        if self._group.shard.rank == 0:
            raise torch.OutOfMemoryError("too large")
        return self._group.sum(torch.ones(1))


def test_a_step_that_fails_on_the_first_rank_ends_the_instance() -> None:
    instance = multiprocessing.get_context("spawn").Process(target=_run_a_step)
    instance.start()
    instance.join(LIMIT_S)
    ended = instance.exitcode
    instance.kill()
    assert ended == 1


def _run_a_step() -> None:
    with parallel_runner(2, "cpu", FailsOnRank0) as ranks:
        ranks.run(cast(Batch, "a batch"))
