"""The scheduler's state machine: events in, commands out."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import pytest

from services.scheduler import events as ev
from services.scheduler.core import SchedulerCore
from services.scheduler.policies.fixed import FixedThresholdPolicy
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.service import is_urgent
from services.scheduler.state.suspects import MAX_ATTEMPTS
from shared.arrays import Int32, unpack_float32, unpack_int32, unpack_int64
from shared.messages.requests import OutcomeError, OutcomeStatus, Request
from shared.messages.steps import StepFailure, StepKind, StepResults
from tests import builders
from tests.builders import END_ID, EPOCH, MASK_ID, draining, registered, scheduler_core
from tests.support.present import present
from tests.support.scripted_cell import ScriptedCell
from tests.support.scripted_worker import ScriptedWorker as Worker


def jobs_of(sent: ev.SendJobs) -> list[tuple[int, int]]:
    """Step and block of each job."""
    return list(zip(unpack_int32(sent.jobs.steps).tolist(), unpack_int32(sent.jobs.blocks).tolist(), strict=True))


def arrival(name: str, output: int = 8, block: int = 4, **fields: object) -> ev.RequestArrived:
    """A request with a prompt of three tokens, delivered under its own name."""
    return builders.arrival(
        name, prompt_tokens=3, output_tokens=output, block_length=block, slo_s=5.0, delivery=name, **fields
    )


C = TypeVar("C")


def of_kind(commands: Iterable[ev.Command], kind: type[C]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def serve(
    core: SchedulerCore, workers: dict[str, Worker], commands: list[ev.Command], now_s: float = 101.0
) -> list[ev.FinishRequest]:
    """Answer every job until none is left. Returns: the finished requests."""
    cell = ScriptedCell(core, workers, of_kind(commands, ev.FinishRequest), now_s)
    cell.serve(commands)
    return cell.finished


def test_a_request_without_a_seed_has_its_own_reproducible_seed() -> None:
    seeds = []
    for _ in range(2):
        arrivals = [arrival("x"), arrival("y"), arrival("z", seed=0)]
        [sent] = of_kind(scheduler_core().cycle([registered(), *arrivals], 100.5), ev.SendJobs)
        seeds.append({state.request_id: state.seed for state in sent.jobs.states})
    assert len(set(seeds[0].values())) == 3
    assert seeds[0]["z"] == 0
    assert seeds[0] == seeds[1]


@pytest.mark.parametrize("caching", [False, True])
def test_the_first_step_of_a_block_is_sent_before_the_result_of_the_last_step(*, caching: bool) -> None:
    core, worker = scheduler_core(lookahead=1, caching=caching), Worker(per_step=4)
    [first] = of_kind(core.cycle([registered(), arrival("r", output=12)], 100.5), ev.SendJobs)
    assert jobs_of(first) == [(0, 0), (1, 0), (1, 1)]
    done = [results for results in worker.run_each(first.jobs) if results.tickets]
    assert [unpack_int32(results.steps).tolist() for results in done] == [[0], [1]]
    [then] = of_kind(core.cycle(done[:1], 100.6), ev.SendJobs)
    assert jobs_of(then) == [(2, 1), (2, 2)]
    [last] = of_kind(core.cycle(done[1:], 100.7), ev.SendJobs)
    assert jobs_of(last) == [(3, 2)]  # this is the last block
    [finish] = serve(core, {"a-1": worker}, [then, last])
    assert finish.output_ids.tolist() == [*range(10, 22)]
    stats, decisions = present(finish.stats), present(finish.decisions)
    assert (stats.steps, stats.recompute_steps) == (3, 3)
    assert unpack_int32(decisions.blocks).tolist() == [0, 1, 2]
    assert unpack_int32(decisions.kinds).tolist() == [StepKind.RECOMPUTE] * 3


def test_no_step_is_sent_across_blocks_if_the_request_may_move_or_has_stop_strings() -> None:
    core = scheduler_core(lambda _: FixedThresholdPolicy(0.9, MigrationPolicy.AT_RECOMPUTE), lookahead=1, caching=True)
    [sent] = of_kind(core.cycle([registered("a-1"), registered("b-1"), arrival("r")], 100.5), ev.SendJobs)
    assert jobs_of(sent) == [(0, 0), (1, 0)]
    core = scheduler_core(lookahead=1)
    [sent] = of_kind(core.cycle([registered(), arrival("r", stop=["."])], 100.5), ev.SendJobs)
    assert jobs_of(sent) == [(0, 0), (1, 0)]


def test_the_state_is_sent_only_with_the_first_step() -> None:
    core = scheduler_core()
    worker = Worker()
    [first] = of_kind(core.cycle([registered(), arrival("r")], 100.0), ev.SendJobs)
    [state] = first.jobs.states
    assert unpack_int32(state.canvas).tolist() == [3, 4, 5] + [MASK_ID] * 8
    [second] = of_kind(core.cycle([worker.run(first.jobs)], 100.1), ev.SendJobs)
    assert second.jobs.states == []
    assert unpack_int32(second.jobs.steps).tolist() == [1]


@pytest.mark.parametrize(
    ("fields", "settings", "end_ids"),
    [
        ({}, {}, [END_ID]),
        ({"stop_token_ids": [8, 9]}, {}, [8, 9, END_ID]),
        ({"ignore_eos": True}, {}, []),
        ({"ignore_eos": True, "stop_token_ids": [8]}, {}, [8]),
        ({"stop_token_ids": [8]}, {"end_ids": ()}, []),  # in a cell where no text ends early
    ],
)
def test_instances_get_the_tokens_that_end_the_request(
    fields: dict[str, Any], settings: dict[str, Any], end_ids: list[int]
) -> None:
    core = scheduler_core(**settings)
    [sent] = of_kind(core.cycle([registered(), arrival("r", **fields)], 100.0), ev.SendJobs)
    assert unpack_int32(sent.jobs.states[0].end_ids).tolist() == end_ids


def test_instances_get_the_fields_that_choose_tokens() -> None:
    fields: dict[str, Any] = {"temperature": 0.7, "seed": 5, "top_p": 0.9, "top_k": 40, "min_p": 0.1}
    fields |= {"presence_penalty": 1.0, "repetition_penalty": 1.5, "logit_bias": {5: 2.0}}
    [sent] = of_kind(scheduler_core().cycle([registered(), arrival("r", **fields)], 100.0), ev.SendJobs)
    assert {name: getattr(sent.jobs.states[0], name) for name in fields} == fields


def test_a_resumed_request_whose_text_has_ended_is_finished_at_once() -> None:
    before = scheduler_core(end_ids=())
    [sent] = of_kind(before.cycle([registered(), arrival("r")], 100.0), ev.SendJobs)
    worker = Worker(per_step=4, end_at=2)
    [saved] = of_kind(before.cycle([worker.run(sent.jobs)], 100.1), ev.SaveCheckpoint)
    again = msgspec.structs.replace(arrival("r"), checkpoint=saved.checkpoint)
    [finish] = scheduler_core().cycle([registered(), again], 100.2)
    assert isinstance(finish, ev.FinishRequest)
    assert finish.status is OutcomeStatus.COMPLETED
    assert finish.output_ids.tolist() == [10, 11, END_ID, 13]


def test_higher_priority_is_placed_first() -> None:
    core = scheduler_core()
    commands = core.cycle([registered(max_batch_requests=1), arrival("low"), arrival("high", priority=5)], 100.0)
    finished = serve(core, {"a-1": Worker()}, commands)
    assert [f.arrived.request.request_id for f in finished] == ["high", "low"]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_step_that_unmasks_nothing_runs_again_on_another_instance(lookahead: int) -> None:
    core, workers = scheduler_core(lookahead=lookahead), {"a-1": Worker("a-1", per_step=0), "b-1": Worker("b-1")}
    commands = core.cycle([registered("a-1"), arrival("r"), arrival("s")], 100.0)
    commands += core.cycle([registered("b-1")], 100.1)
    finished = serve(core, workers, commands)
    assert [f.status for f in finished] == [OutcomeStatus.COMPLETED] * 2
    assert [f.output_ids.tolist() for f in finished] == [[10 + i for i in range(8)]] * 2


@pytest.mark.parametrize(("field", "status"), [(None, OutcomeStatus.FAILED), ("pattern", OutcomeStatus.REJECTED)])
def test_a_failed_step_ends_its_request_with_the_reason(field: str | None, status: OutcomeStatus) -> None:
    core = scheduler_core()
    [sent] = of_kind(core.cycle([registered(), arrival("r")], 100.0), ev.SendJobs)
    [ticket] = unpack_int64(sent.jobs.tickets).tolist()
    failure = StepFailure(ticket=ticket, message="no text matches", field=field)
    results = StepResults(instance_id="a-1", epoch=EPOCH, failures=[failure])
    [finish] = of_kind(core.cycle([results], 100.1), ev.FinishRequest)
    assert (finish.status, finish.error) == (status, OutcomeError(message="no text matches", field=field))


def test_drops_are_sent_before_their_request_can_come_back_with_its_ticket() -> None:
    core, worker = scheduler_core(), Worker("a-1")
    [first] = of_kind(core.cycle([registered("a-1"), arrival("r")], 100.0), ev.SendJobs)
    [drop] = of_kind(core.cycle([worker.run(first.jobs), draining("a-1")], 100.1), ev.SendJobs)
    [again] = of_kind(core.cycle([registered("a-1")], 100.2), ev.SendJobs)
    assert unpack_int64(drop.jobs.drops).tolist() == unpack_int64(again.jobs.tickets).tolist()
    assert is_urgent(drop)


def where(commands: Iterable[ev.Command]) -> set[str]:
    """The instances that received a step."""
    return {command.instance_id for command in of_kind(commands, ev.SendJobs) if command.jobs.tickets}


def test_with_a_cache_a_request_leaves_a_draining_instance_at_the_end_of_its_block() -> None:
    core = scheduler_core(caching=True)
    worker = Worker("a-1", per_step=1)
    [job] = of_kind(core.cycle([registered("a-1"), arrival("r")], 100.0), ev.SendJobs)
    core.cycle([draining("a-1", drain_s=99.9), registered("b-1")], 100.1)
    for _ in range(3):
        [job] = of_kind(core.cycle([worker.run(job.jobs)], 100.2), ev.SendJobs)
        assert job.instance_id == "a-1"
    assert where(core.cycle([worker.run(job.jobs)], 100.3)) == {"b-1"}


@pytest.mark.parametrize("draining_s", [0.0, 20.0])
def test_all_requests_leave_a_draining_instance_at_its_time_limit(draining_s: float) -> None:
    """A scheduler that begins to lead learns of the drain when it has lasted for `draining_s`."""
    core = scheduler_core(caching=True)
    worker = Worker("a-1", per_step=1)
    [job] = of_kind(core.cycle([registered("a-1"), arrival("r")], 100.0), ev.SendJobs)
    core.cycle([draining("a-1", drain_s=draining_s + 4.9, draining_s=draining_s), registered("b-1")], 100.1)
    assert where(core.cycle([], 104.8)) == set()
    commands = core.cycle([worker.run(job.jobs)], 105.0)
    assert where(commands) == {"b-1"}
    assert any(command.jobs.drops for command in of_kind(commands, ev.SendJobs) if command.instance_id == "a-1")


def test_an_unanswered_step_is_retried_and_fails_after_some_attempts() -> None:
    core = scheduler_core(step_timeout_s=10.0)
    commands = core.cycle([registered(), arrival("r")], 100.0)
    for attempt in range(1, MAX_ATTEMPTS):
        assert of_kind(core.cycle([], 100.0 + 11 * attempt - 2), ev.SendJobs) == []
        commands = core.cycle([], 100.0 + 11 * attempt)
        [again] = of_kind(commands, ev.SendJobs)
        assert len(again.jobs.states) == 1
    [finish] = of_kind(core.cycle([], 100.0 + 11 * MAX_ATTEMPTS), ev.FinishRequest)
    assert finish.status is OutcomeStatus.FAILED


def test_a_request_whose_state_an_instance_never_keeps_fails_after_some_attempts() -> None:
    core = scheduler_core()
    commands = core.cycle([registered(), arrival("r")], 100.0)
    for _ in range(MAX_ATTEMPTS):
        [sent] = of_kind(commands, ev.SendJobs)
        assert len(sent.jobs.states) == 1
        lost = StepResults(instance_id="a-1", epoch=sent.jobs.epoch, missing=sent.jobs.tickets)
        commands = core.cycle([lost], 100.1)
    [finish] = of_kind(commands, ev.FinishRequest)
    assert finish.status is OutcomeStatus.FAILED


def test_an_unresponsive_instance_loses_its_requests_and_receives_one_at_a_time() -> None:
    core, worker = scheduler_core(step_timeout_s=10.0), Worker("b-1")
    requests = [arrival(f"r{i}") for i in range(6)]
    commands = core.cycle([registered("a-1"), registered("b-1"), *requests], 100.0)
    finished = []
    for tick in range(1, 30):
        answered = [c for c in of_kind(commands, ev.SendJobs) if c.instance_id == "b-1"]
        done = [results for c in answered for results in worker.run_each(c.jobs)]
        new = [arrival(f"n{tick}")] if tick > 20 else []  # a-1 is unresponsive by then
        commands = core.cycle([*done, *new], 100.0 + tick)
        finished += of_kind(commands, ev.FinishRequest)
        assert tick < 21 or core.fleet.requests[core.fleet.index_of["a-1"]] == 1
    assert {f"r{i}" for i in range(6)} <= {f.arrived.request.request_id for f in finished}
    assert {f.status for f in finished} == {OutcomeStatus.COMPLETED}


def test_an_instance_that_answers_again_is_used_normally() -> None:
    core, a, b = scheduler_core(step_timeout_s=10.0), Worker("a-1"), Worker("b-1")
    [late] = of_kind(core.cycle([registered("a-1"), arrival("r")], 100.0), ev.SendJobs)
    _, moved = of_kind(core.cycle([registered("b-1")], 111.0), ev.SendJobs)
    assert moved.instance_id == "b-1"
    core.cycle([a.run(late.jobs), b.run(moved.jobs)], 111.1)
    core.cycle([arrival("s"), arrival("t"), arrival("u")], 111.2)
    assert core.fleet.requests[core.fleet.index_of["a-1"]] == 2


def test_a_request_that_returns_to_its_last_instance_has_not_migrated() -> None:
    core, worker = scheduler_core(), Worker("a-1", per_step=4)
    [first] = of_kind(core.cycle([registered("a-1"), arrival("r", output=12)], 100.0), ev.SendJobs)
    commands = core.cycle([worker.run(first.jobs), ev.StepsLost()], 100.1)
    [saved] = of_kind(commands, ev.SaveCheckpoint)
    [finish] = serve(core, {"a-1": worker}, core.cycle([ev.StepsLost()], 100.2))
    stats = present(finish.stats)
    assert (stats.instances, stats.migrations) == (["a-1"], 0)
    been_elsewhere = msgspec.structs.replace(saved.checkpoint, instances=["a-1", "b-1"])
    resumed = msgspec.structs.replace(arrival("r", output=12), checkpoint=been_elsewhere)
    for name, migrations in [("a-1", 0), ("b-1", 1)]:
        core = scheduler_core()
        [finish] = serve(core, {name: Worker(name)}, core.cycle([registered(name), resumed], 100.3))
        stats = present(finish.stats)
        [use] = stats.thresholds
        assert (stats.migrations, use.steps, use.tokens) == (migrations, stats.steps, 12)


def test_decisions_of_steps_sent_ahead_survive_the_growth_of_the_table() -> None:
    core, worker = scheduler_core(lookahead=1), Worker(per_step=1)
    [sent] = of_kind(core.cycle([registered(), arrival("r", output=16, block=8)], 100.0), ev.SendJobs)
    core.cycle([arrival(f"s{i}") for i in range(core.table.capacity)], 100.1)
    done = worker.run_each(sent.jobs)
    [finish] = of_kind(core.cycle([*done, ev.RequestCancelled("r")], 100.2), ev.FinishRequest)
    assert unpack_float32(present(finish.decisions).thresholds).tolist() == pytest.approx([0.9, 0.9])


def test_each_request_has_a_row_of_its_own_when_the_table_grows() -> None:
    core = scheduler_core()
    table, first = core.table, core.table.capacity
    for number in range(4 * first):
        core.cycle([arrival(f"r{number}")], 100.0)
        assert table.capacity == max(first, 1 << number.bit_length())
    assert sorted(table.row_of.values()) == list(range(4 * first))


@pytest.mark.parametrize(
    "away", [[ev.InstanceLost("a-1"), registered("a-1")], [ev.StepsLost()], [registered("a-1", connections=2)]]
)
def test_after_a_loss_of_the_instance_or_the_bus_old_tickets_are_forgotten(away: list[ev.Event]) -> None:
    core = scheduler_core()
    [first] = of_kind(core.cycle([registered("a-1"), arrival("r")], 100.0), ev.SendJobs)
    [again] = of_kind(core.cycle(away, 100.1), ev.SendJobs)
    [before], [state] = unpack_int64(first.jobs.tickets).tolist(), again.jobs.states
    assert before < state.ticket < again.jobs.forget_below
    [then] = of_kind(core.cycle([Worker("a-1").run(again.jobs)], 100.2), ev.SendJobs)
    assert then.jobs.forget_below == 0


@pytest.mark.parametrize("lost", ["steps", "connection"])
def test_a_connection_that_breaks_again_and_again_charges_no_request(lost: str) -> None:
    core = scheduler_core()
    commands = core.cycle([registered("a-1"), arrival("r")], 100.0)
    for number in range(2 * MAX_ATTEMPTS):
        event = ev.StepsLost() if lost == "steps" else registered("a-1", connections=2 + number)
        commands = core.cycle([event], 100.1 + number)
    [finish] = serve(core, {"a-1": Worker("a-1")}, commands)
    assert finish.status is OutcomeStatus.COMPLETED


def test_a_cancelled_request_ends_and_is_dropped_on_its_instance() -> None:
    core = scheduler_core()
    [sent] = of_kind(core.cycle([registered(), arrival("r")], 100.0), ev.SendJobs)
    commands = core.cycle([ev.RequestCancelled("r"), ev.RequestCancelled("unknown")], 100.1)
    [finish], [drop] = of_kind(commands, ev.FinishRequest), of_kind(commands, ev.SendJobs)
    assert finish.status is OutcomeStatus.CANCELLED
    assert drop.jobs.drops == sent.jobs.tickets
    assert int(core.fleet.tokens.sum()) == 0


def test_a_request_that_arrives_and_is_cancelled_in_one_cycle_leaves_the_others() -> None:
    core = scheduler_core()
    commands = core.cycle([registered(), *map(arrival, "abc"), ev.RequestCancelled("b"), arrival("d")], 100.0)
    finished = serve(core, {"a-1": Worker()}, commands)
    statuses = {finish.arrived.request.request_id: finish.status for finish in finished}
    completed = dict.fromkeys("acd", OutcomeStatus.COMPLETED)
    assert statuses == {"b": OutcomeStatus.CANCELLED, **completed}


def test_progress_is_reported_only_for_streaming_requests() -> None:
    core = scheduler_core()
    [sent] = of_kind(core.cycle([registered(), arrival("r", stream=True), arrival("quiet")], 100.0), ev.SendJobs)
    [progress] = of_kind(core.cycle([Worker().run(sent.jobs)], 100.1), ev.SendProgress)
    assert progress.request_id == "r"
    assert unpack_int32(progress.progress.positions).tolist() == [0, 1]
    assert unpack_int32(progress.progress.tokens).tolist() == [10, 11]


def test_a_text_that_raises_an_error_fails_its_request_alone() -> None:
    def ended(_output: Int32, request: Request, _checked: int) -> bool:
        if request.request_id == "bad":
            raise KeyError("no such token")
        return False

    core = scheduler_core(text_ended=ended)
    commands = core.cycle([registered("i-1"), arrival("good"), arrival("bad")], 100.0)
    finished = {each.arrived.request.request_id: each for each in serve(core, {"i-1": Worker("i-1")}, commands)}
    assert finished["good"].status is OutcomeStatus.COMPLETED
    assert (finished["bad"].status, "KeyError" in str(finished["bad"].error)) == (OutcomeStatus.FAILED, True)
