"""Chosen batches, from the scheduler to the engine: a request sits out, and steps later; no instance stands still."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from services.scheduler import events as ev
from services.scheduler.policies.fixed import FixedThresholdPolicy
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.state.fleet import Fleet
from services.scheduler.state.request_table import RequestTable
from services.scheduler.state.step_pipeline import IDLE
from services.worker.engine.cache_mode import CacheMode
from shared.arrays import Bool, Int64, unpack_int32, unpack_int64
from shared.messages.steps import StepJobs, StepKind, StepResults
from tests.support.engine_cell import MAX_REQUESTS, THRESHOLD, EngineCell, Text, dilaserve

LOOKAHEADS = pytest.mark.parametrize("lookahead", [0, 1])


@dataclass(frozen=True, slots=True)
class NamedBatches(FixedThresholdPolicy):
    """The requests in `sit_out` step only if no other request of their instance does."""

    sit_out: set[str] = field(default_factory=set)

    def select(self, rows: Int64, joined: Int64, table: RequestTable, fleet: Fleet, now_s: float) -> Bool:  # noqa: ARG002
        steps = np.array([table.entry(row).request_id not in self.sit_out for row in rows.tolist()], dtype=np.bool_)
        others = set(table.instance[rows[steps]].tolist()) | set(table.instance[joined].tolist())
        chosen: Bool = steps | np.array([index not in others for index in table.instance[rows].tolist()])
        return chosen


def cell_of(*sit_out: str, lookahead: int, moves: MigrationPolicy = MigrationPolicy.NEVER) -> EngineCell:
    """With one instance, a-1."""
    policy = NamedBatches(THRESHOLD, moves, sit_out=set(sit_out))
    cell = EngineCell(mode=CacheMode.DUAL, lookahead=lookahead, moves=moves, make_policy=lambda *_: policy)
    cell.start_worker("a-1")
    return cell


def submit(cell: EngineCell, *numbers: int) -> None:
    """Requests of three blocks that arrive together."""
    texts = [Text(number, blocks=3) for number in numbers]
    for text in texts:
        cell.texts[text.number] = cell.unsettled[text.name] = text
    cell.cycle([text.arrival(cell.now_s) for text in texts])


def names(cell: EngineCell, tickets: bytes) -> list[str]:
    rows = cell.core.table.rows_of_tickets(unpack_int64(tickets)).tolist()
    return [cell.core.table.entry(row).request_id for row in rows]


def sent(cell: EngineCell, name: str = "a-1") -> list[tuple[str, int]]:
    """Request and batch of each job that waits for delivery to an instance."""
    return [job for jobs in cell.jobs[name] for job in rows_of(cell, jobs)]


def rows_of(cell: EngineCell, jobs: StepJobs) -> Iterator[tuple[str, int]]:
    return zip(names(cell, jobs.tickets), unpack_int32(jobs.batches).tolist(), strict=True)


def run(cell: EngineCell, name: str = "a-1") -> list[str]:
    """Deliver the instance's jobs and run one iteration. Returns: the requests that stepped."""
    while cell.jobs[name]:
        cell.deliver_jobs(name)
    assert cell.compute(name)
    return names(cell, cell.results[-1].tickets)


def row_of(cell: EngineCell, name: str) -> int:
    return cell.core.table.row_of[name]


def finish_all(cell: EngineCell) -> None:
    """Every request ends with the output of a plain loop, without further events."""
    cell.run_until_idle()
    assert not cell.unsettled
    for text in cell.texts.values():
        if cell.finished[text.name].status.value == "completed":
            assert cell.finished[text.name].output_ids.tolist() == text.reference()[0]


def test_without_lookahead_an_arrival_waits_for_the_end_of_the_iteration() -> None:
    cell = cell_of(lookahead=0)
    submit(cell, 1)
    assert sent(cell) == [("r1", 1)]
    run(cell)
    submit(cell, 2)
    assert sent(cell) == []
    cell.deliver_results()
    assert sent(cell) == [("r1", 2), ("r2", 2)]
    finish_all(cell)


def test_with_lookahead_an_arrival_joins_the_next_batch_while_one_runs() -> None:
    cell = cell_of(lookahead=1)
    submit(cell, 1)
    assert set(sent(cell)) == {("r1", 1), ("r1", 2)}
    cell.deliver_jobs("a-1")
    submit(cell, 2)
    assert sent(cell) == [("r2", 2)]
    assert [run(cell), sorted(run(cell))] == [["r1"], ["r1", "r2"]]
    finish_all(cell)


@LOOKAHEADS
def test_a_request_that_sits_out_keeps_its_instance_and_its_cache(lookahead: int) -> None:
    cell = cell_of(lookahead=lookahead)
    submit(cell, 1, 2)
    run(cell)
    cell.core.policy.sit_out.add("r2")  # type: ignore[attr-defined]
    for _ in range(3):
        cell.deliver_results()
        ran = run(cell)
    assert ran == ["r1"]
    table, fleet = cell.core.table, cell.core.fleet
    row = row_of(cell, "r2")
    assert (table.pipeline.state[row], table.instance[row], fleet.requests[0]) == (IDLE, 0, 2)
    cell.core.policy.sit_out.clear()  # type: ignore[attr-defined]
    steps = table.recompute_steps[row]
    cell.deliver_results()
    while "r2" not in run(cell):
        cell.deliver_results()
    assert table.pipeline.kind[row] == StepKind.CACHE
    assert table.recompute_steps[row] == steps
    finish_all(cell)


@LOOKAHEADS
def test_a_batch_whose_requests_are_all_cancelled_does_not_block_the_instance(lookahead: int) -> None:
    cell = cell_of("r2", lookahead=lookahead)
    submit(cell, 1, 2)
    assert ("r2", 1) not in sent(cell)
    cell.deliver_jobs("a-1")
    cell.cycle([ev.RequestCancelled("r1")])
    assert "r2" in dict(sent(cell))
    finish_all(cell)


@LOOKAHEADS
def test_a_request_whose_state_is_missing_steps_again_without_other_events(lookahead: int) -> None:
    """The report of the loss is the instance's only message."""
    cell = cell_of(lookahead=lookahead)
    submit(cell, 1)
    [jobs] = cell.jobs["a-1"]
    cell.jobs["a-1"].clear()
    cell.cycle([StepResults(instance_id="a-1", epoch=jobs.epoch, missing=jobs.tickets[:8])])
    assert [name for name, _ in sent(cell)][:1] == ["r1"]
    finish_all(cell)


def test_an_index_that_is_used_again_counts_batches_from_one() -> None:
    cell = cell_of(lookahead=1)
    submit(cell, 1)
    for _ in range(3):
        run(cell)
        cell.deliver_results()
    cell.end_worker("a-1")
    cell.start_worker("b-1")
    assert cell.core.fleet.index_of == {"b-1": 0}
    assert {batch for _, batch in sent(cell, "b-1")} == {1}
    finish_all(cell)


def test_a_worker_that_registers_again_runs_batches_apart() -> None:
    """Its scheduler counts the batches from one again; the worker has run more."""
    cell = cell_of(lookahead=1)
    submit(cell, 1)
    for _ in range(3):
        run(cell)
        cell.deliver_results()
    cell.deliver_jobs("a-1")
    cell.cycle([ev.InstanceUpdated(replace(cell.heartbeat("a-1").instance, connections=2))])
    submit(cell, 2)
    assert ("r2", 2) in sent(cell)
    assert run(cell) == ["r1"]
    finish_all(cell)


def test_an_instance_runs_recompute_steps_apart_from_cache_steps() -> None:
    cell = EngineCell(mode=CacheMode.DUAL, lookahead=0, moves=MigrationPolicy.NEVER, make_policy=dilaserve)
    cell.start_worker("a-1")
    submit(cell, *range(1, MAX_REQUESTS + 1))
    kinds = []
    while cell.unsettled:
        [jobs] = cell.jobs["a-1"]
        kinds.append(set(unpack_int32(jobs.kinds).tolist()))
        run(cell)
        cell.deliver_results()
    assert {StepKind.CACHE} in kinds
    assert {StepKind.RECOMPUTE} in kinds
    assert {StepKind.CACHE, StepKind.RECOMPUTE} not in kinds


def test_an_arrival_joins_a_batch_of_recompute_steps_that_waits() -> None:
    cell = EngineCell(mode=CacheMode.DUAL, lookahead=1, moves=MigrationPolicy.NEVER, make_policy=dilaserve)
    cell.start_worker("a-1")
    submit(cell, 1)
    cell.deliver_jobs("a-1")
    submit(cell, 2, 3)
    assert sent(cell) == []  # the next batch has the cache step of r1
    run(cell)
    cell.deliver_results()
    assert sent(cell) == [("r2", 3), ("r3", 3)]
    cell.deliver_jobs("a-1")
    submit(cell, 4)
    assert sent(cell) == [("r4", 3)]
    finish_all(cell)


def test_an_iteration_with_a_cancelled_request_does_not_correct_the_costs() -> None:
    """The scheduler no longer knows all that it computed."""
    cell = EngineCell(mode=CacheMode.DUAL, lookahead=0, moves=MigrationPolicy.NEVER)
    cell.start_worker("a-1")
    submit(cell, 1, 2)
    run(cell)
    cell.results[0] = msgspec.structs.replace(cell.results[0], latency_s=100.0)
    cell.cycle([ev.RequestCancelled("r1")])
    cell.deliver_results()
    assert cell.core.table.steps[row_of(cell, "r2")] == 1
    assert cell.core.fleet.correction[0] == 1.0
    finish_all(cell)
