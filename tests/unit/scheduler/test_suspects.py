"""A request that ends its instances costs others neither an attempt nor a token."""

import itertools
from collections.abc import Iterator

import pytest

from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.state.request_table import NOWHERE
from services.scheduler.state.suspects import MAX_ATTEMPTS
from services.worker.engine.cache_mode import CacheMode
from shared.messages.requests import OutcomeStatus
from tests.support.engine_cell import EngineCell, MakePolicy, Poisoned, Text, any_batch, dilaserve, fixed

NUM_REQUESTS = 6
POLICIES = pytest.mark.parametrize("make_policy", [fixed, any_batch, dilaserve])
LOOKAHEADS = pytest.mark.parametrize("lookahead", [0, 1])


def cell_with(make_policy: MakePolicy, lookahead: int, *poison: int) -> EngineCell:
    """Two instances and six requests; those numbered `poison` end each instance that runs them."""
    moves = MigrationPolicy.AT_RECOMPUTE
    cell = EngineCell(mode=CacheMode.DUAL, lookahead=lookahead, moves=moves, make_policy=make_policy)
    cell.poison = frozenset(poison)
    for name in ("a-1", "b-1"):
        cell.start_worker(name)
    for number in range(NUM_REQUESTS):
        cell.submit(Text(number, blocks=2))
    return cell


def crashes(cell: EngineCell) -> Iterator[str]:
    """Run until idle; each instance that a poison request ends is replaced. Yields: the names of ended instances."""
    for number in itertools.count(2):
        try:
            cell.run_until_idle()
        except Poisoned as error:
            [name] = error.args
            cell.end_worker(name)
            cell.start_worker(f"{name[0]}-{number}")
            yield name
        else:
            return


def check(cell: EngineCell, *poison: int) -> None:
    """The poison requests failed, and all others have their text."""
    assert not cell.unsettled
    for text in cell.texts.values():
        finish = cell.finished[text.name]
        if text.number in poison:
            assert (finish.status, "alone" in str(finish.error)) == (OutcomeStatus.FAILED, True)
        else:
            assert (finish.status, finish.output_ids.tolist()) == (OutcomeStatus.COMPLETED, text.reference()[0])


@LOOKAHEADS
@POLICIES
@pytest.mark.parametrize("poison", [(3,), (0, 3, 5)])
def test_only_poison_requests_fail(make_policy: MakePolicy, lookahead: int, poison: tuple[int, ...]) -> None:
    cell = cell_with(make_policy, lookahead, *poison)
    ended = len(list(crashes(cell)))
    check(cell, *poison)
    assert MAX_ATTEMPTS * len(poison) <= ended <= (1 + MAX_ATTEMPTS) * len(poison)


@POLICIES
def test_the_attempts_outlive_the_scheduler(make_policy: MakePolicy) -> None:
    cell = cell_with(make_policy, 1, 3)
    for number, _ in enumerate(crashes(cell)):
        assert number <= MAX_ATTEMPTS
        cell.start_scheduler()
    check(cell, 3)


@LOOKAHEADS
@POLICIES
def test_after_a_crash_each_suspect_runs_one_step_alone(make_policy: MakePolicy, lookahead: int) -> None:
    cell = cell_with(make_policy, lookahead)
    cell.end_worker("b-1")
    cell.end_worker("a-1")
    cell.start_worker("a-2")
    table = cell.core.table
    while (table.suspect & (table.instance != NOWHERE)).any():
        assert len(table.pipeline.in_flight()) == 1
        cell.deliver_jobs("a-2")
        cell.compute("a-2")
        cell.deliver_results()
    assert len(table.pipeline.in_flight()) > 1
    cell.run_until_idle()
    check(cell)


@LOOKAHEADS
@POLICIES
def test_batches_that_exceed_the_memory_end_no_instance(make_policy: MakePolicy, lookahead: int) -> None:
    cell = cell_with(make_policy, lookahead)
    for model in cell.models.values():
        model.is_small = True
    assert not list(crashes(cell))
    check(cell)
    assert cell.engines.keys() == {"a-1", "b-1"}
    assert not cell.core.table.suspect.any()
