"""The scheduler's core with workers' engines, under any order of messages and failures."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler import events as ev
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.state.request_table import NOWHERE
from services.scheduler.state.suspects import MAX_ATTEMPTS
from services.worker.engine.cache_mode import CacheMode
from shared.arrays import Int64, unpack_int32
from shared.messages.requests import OutcomeStatus
from shared.messages.steps import StepKind
from shared.pinned import free_positions
from tests.support.engine_cell import BLOCK, STEP_TIMEOUT_S, EngineCell, Text, any_batch, dilaserve, fixed
from tests.support.present import present

MAX_INSTANCES = 3
POSITIONS = st.none() | st.integers(0, 4 * BLOCK - 1)
WHICH = st.integers(0, MAX_INSTANCES - 1)


class AnyOrder(RuleBasedStateMachine):
    """Every request ends once, with the output and the number of steps of a plain loop, and leaves nothing behind."""

    def __init__(self) -> None:
        super().__init__()
        self.num_requests = self.num_started = 0

    @initialize(
        mode=st.sampled_from(CacheMode),
        lookahead=st.integers(0, 1),
        moves=st.sampled_from(MigrationPolicy),
        number=WHICH,
        lossless=st.booleans(),
        make_policy=st.sampled_from([fixed, any_batch, dilaserve]),
    )
    def begin(self, *, number: int, lossless: bool, **cell: Any) -> None:
        """`lossless`: whether no message is lost."""
        self.lossless = lossless
        self.cell = EngineCell(**cell)
        for _ in range(number):
            self.join()

    def one(self, which: int) -> str:
        """An instance; a new one if none exists."""
        if not self.cell.engines:
            self.join()
        names = sorted(self.cell.engines)
        return names[which % len(names)]

    @rule()
    def join(self) -> None:
        if len(self.cell.engines) < MAX_INSTANCES:
            self.num_started += 1
            self.cell.start_worker(f"i{self.num_started}-1")

    @rule(
        blocks=st.integers(1, 4),
        end_at=POSITIONS,
        stop_at=POSITIONS,
        pinned_positions=st.just(frozenset()) | st.frozensets(st.integers(0, 4 * BLOCK - 1)),
        has_edits=st.booleans(),
    )
    def submit(self, blocks: int, **own: Any) -> None:
        """Of a block-causal model only, texts without pinned tokens may have edits."""
        self.num_requests += 1
        self.cell.submit(Text(self.num_requests, blocks, **own))

    @rule(which=WHICH)
    def deliver_jobs(self, which: int) -> None:
        self.cell.deliver_jobs(self.one(which))

    @rule(which=WHICH, times=st.integers(1, 3))
    def compute(self, which: int, times: int) -> None:
        for _ in range(times):
            self.cell.compute(self.one(which))

    @rule(count=st.integers(1, 3))
    def deliver_results(self, count: int) -> None:
        self.cell.deliver_results(count)

    @rule(number=st.integers(1, 10))
    def cancel(self, number: int) -> None:
        self.cell.cycle([ev.RequestCancelled(f"r{number}")])

    @rule(seconds=st.sampled_from([0.01, 1.5]))
    def wait(self, seconds: float) -> None:
        self.cell.now_s += seconds
        self.cell.cycle()

    @rule(which=WHICH, seconds=st.sampled_from([0.0, 1.0, 100.0]))
    def drain(self, which: int, seconds: float) -> None:
        self.cell.cycle([self.cell.heartbeat(self.one(which), drain_s=seconds)])

    # Failures

    @rule(which=WHICH)
    def die(self, which: int) -> None:
        self.cell.end_worker(self.one(which))

    @rule(which=WHICH)
    def quarantine(self, which: int) -> None:
        self.cell.quarantine_worker(self.one(which))

    @rule(which=WHICH, at_once=st.booleans())
    def lose_and_register_again(self, which: int, *, at_once: bool) -> None:
        name = self.one(which)
        self.cell.cycle([ev.InstanceLost(name), *([self.cell.heartbeat(name)] if at_once else [])])
        self.cell.cycle([self.cell.heartbeat(name)])

    @rule(which=WHICH)
    def toggle_device_memory_limit(self, which: int) -> None:
        model = self.cell.models[self.one(which)]
        model.is_small = not model.is_small

    @rule()
    def start_another_scheduler(self) -> None:
        self.cell.start_scheduler()

    @rule()
    def restart_the_bus(self) -> None:
        self.cell.results.clear()
        for jobs in self.cell.jobs.values():
            jobs.clear()
        self.cell.cycle([ev.StepsLost()])

    @rule(which=WHICH, ago=st.integers(0, 9))
    def redeliver_jobs(self, which: int, ago: int) -> None:
        name = self.one(which)
        _, messages = self.cell.received[name]
        self.cell.jobs[name].extendleft(messages[-1 - ago :][:1])
        self.cell.deliver_jobs(name)

    @rule()
    def redeliver_results(self) -> None:
        self.cell.results.extendleft(list(self.cell.results)[:1])
        self.cell.deliver_results(1)

    @precondition(lambda self: not self.lossless)
    @rule(which=WHICH)
    def lose_jobs(self, which: int) -> None:
        if jobs := self.cell.jobs[self.one(which)]:
            jobs.popleft()

    @precondition(lambda self: not self.lossless)
    @rule()
    def lose_results(self) -> None:
        if self.cell.results:
            self.cell.results.popleft()

    # Invariants

    @invariant()
    def loads_match_the_requests_placed(self) -> None:
        if not hasattr(self, "cell"):
            return
        table, fleet = self.cell.core.table, self.cell.core.fleet
        rows = np.flatnonzero(table.ticket)
        assert len(rows) == len(table)
        assert {*table.instance[rows].tolist()} <= {NOWHERE, *fleet.index_of.values()}
        for index in fleet.index_of.values():
            placed = rows[table.instance[rows] == index]
            assert (fleet.requests[index], fleet.tokens[index]) == (len(placed), table.tokens[placed].sum())

    def teardown(self) -> None:
        """Without further failures, all requests end."""
        for model in self.cell.models.values():
            model.is_small = False
        self.num_started += 1
        self.cell.start_worker("last-1")
        self.cell.run_until_idle()
        assert not (self.lossless and self.cell.unsettled), "the scheduler waits for a message that nothing sends"
        for _ in range(MAX_ATTEMPTS + 1):
            self.cell.now_s += STEP_TIMEOUT_S + 2
            self.cell.cycle()
            self.cell.run_until_idle()
        assert not self.cell.unsettled
        for text in self.cell.texts.values():
            may_restart = text.name in self.cell.restarted
            _check(self.cell.finished[text.name], text, self.cell.streamed[text.name], may_restart=may_restart)
        if self.lossless:
            self._leaves_nothing()

    def _leaves_nothing(self) -> None:
        """No instance holds anything after each has received further requests."""
        self.cell.cycle([self.cell.heartbeat(name) for name in self.cell.engines])
        for _ in range(4 * len(self.cell.engines)):
            self.submit(blocks=1)
        self.cell.run_until_idle()
        assert not self.cell.unsettled
        held = [(e.num_resident, e.used_cache_tokens, e.waiting) for e in self.cell.engines.values()]
        assert set(held) == {(0, 0, False)}


def _check(finish: ev.FinishRequest, text: Text, streamed: dict[int, int], *, may_restart: bool) -> None:
    """The steps before a restart stay counted."""
    if finish.status is OutcomeStatus.COMPLETED:
        stats, decisions = present(finish.stats), present(finish.decisions)
        blocks, kinds = unpack_int32(decisions.blocks), unpack_int32(decisions.kinds)
        output, steps = text.reference()
        assert finish.output_ids.tolist() == output
        assert stats.steps == steps or (may_restart and stats.steps > steps)
        free = free_positions(finish.arrived.request.pinned, len(finish.output_ids))
        expected = [text.final_confidence(position) for position in free.tolist()]
        assert present(finish.confidences)[free].tolist() == np.array(expected, dtype=np.float32).tolist()
        _check_top_tokens(finish, free)
        if finish.arrived.request.stream:
            assert streamed == {position: int(finish.output_ids[position]) for position in free.tolist()}
        assert decisions.first_step + len(blocks) == stats.steps
        assert may_restart or (np.diff(blocks) >= 0).all()
        if decisions.first_step == 0:
            assert np.count_nonzero(kinds == StepKind.RECOMPUTE) == stats.recompute_steps
    else:
        assert finish.status is OutcomeStatus.CANCELLED or "tries had no valid answer" in str(finish.error)


@pytest.mark.parametrize("mode", [CacheMode.NONE, CacheMode.DUAL])
def test_a_returning_request_replaces_its_old_state_even_if_the_drop_was_lost(mode: CacheMode) -> None:
    cell = EngineCell(mode=mode, lookahead=0, moves=MigrationPolicy.NEVER)
    cell.start_worker("a-1")
    cell.start_worker("b-1")
    cell.submit(text := Text(1, blocks=1))
    for leaves, goes_to in [("a-1", "b-1"), ("b-1", "a-1")]:
        cell.deliver_jobs(leaves)
        cell.compute(leaves)
        cell.cycle([cell.heartbeat(goes_to), cell.heartbeat(leaves, drain_s=0.0)])
        cell.deliver_results()
        cell.jobs[leaves].clear()
    cell.run_until_idle()
    finish = cell.finished[text.name]
    stats = present(finish.stats)
    assert (finish.output_ids.tolist(), stats.steps, stats.migrations) == (*text.reference(), 2)


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=50)
TestAnyOrder = AnyOrder.TestCase


def _check_top_tokens(finish: ev.FinishRequest, free: Int64) -> None:
    k = finish.arrived.request.top_logprobs
    assert (finish.top_tokens is None) == (k == 0)
    if finish.top_tokens is not None:
        expected = present(finish.confidences)[free, None] / np.float32(2) ** np.arange(k, dtype=np.float32)
        assert finish.top_tokens.confidences[free].tolist() == expected.tolist()
        assert finish.top_tokens.tokens[free].tolist() == (finish.output_ids[free, None] + np.arange(k)).tolist()
