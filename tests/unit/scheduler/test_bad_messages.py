"""Invalid messages and checkpoints, and instances in quarantine, cost at most the progress of their own requests."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core import SchedulerCore
from services.scheduler.events import FinishRequest, InstanceLost, InstanceQuarantined, RequestArrived, SaveCheckpoint
from services.scheduler.state.checkpoints import take_checkpoints
from services.scheduler.state.invalid_results import invalid_steps
from services.scheduler.state.output_buffer import MASKED
from services.scheduler.state.suspects import MAX_ATTEMPTS
from shared.arrays import pack_float32, pack_int32, unpack_float32, unpack_int32, unpack_int64
from shared.messages.requests import OutcomeStatus
from shared.messages.steps import StepFailure, StepResults, StepTopTokens
from tests.builders import ARRIVAL_S, EPOCH, MASK_ID, arrival, registered, scheduler_core
from tests.support.present import present
from tests.support.scripted_cell import ScriptedCell, jobs_in
from tests.support.scripted_worker import FIRST_TOKEN, ScriptedWorker

VOCAB = 10_000
COLUMNS = ("tickets", "steps", "counts", "tokens", "confidences", "confidence_stats", "missing")


def core_with(*instances: str) -> SchedulerCore:
    core = scheduler_core(vocab_size=VOCAB, end_ids=())
    core.cycle([registered(name) for name in instances], ARRIVAL_S)
    return core


def with_first(results: StepResults, column: str, value: float) -> StepResults:
    """The results with another first value in a column of positions, tokens, confidences or statistics."""
    of_numbers = column in ("positions", "tokens")
    values = (unpack_int32 if of_numbers else unpack_float32)(getattr(results, column)).copy()
    values[0] = value
    packed = pack_int32(values) if of_numbers else pack_float32(values)
    return msgspec.structs.replace(results, **{column: packed})


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tokens", -5),
        ("tokens", VOCAB),
        ("tokens", MASK_ID),
        ("positions", 1),  # a second time
        ("confidences", np.nan),
        ("confidences", np.inf),
        ("confidence_stats", np.nan),
    ],
)
def test_an_invalid_value_costs_only_its_own_requests_step(column: str, value: float) -> None:
    core, worker = core_with("a-1"), ScriptedWorker("a-1", per_step=4)
    [sent] = jobs_in(core.cycle([arrival("bad"), arrival("good")], ARRIVAL_S))
    core.cycle([with_first(worker.run(sent.jobs), column, value)], ARRIVAL_S)
    table = core.table
    bad, good = (table.row_of[name] for name in ("bad", "good"))
    assert (table.steps[bad], table.steps[good]) == (0, 1)
    assert (table.attempts[bad], table.attempts[good]) == (1, 0)
    assert (table.output_ids(bad) == MASKED).all()


def test_a_request_with_only_invalid_results_fails_after_three_attempts() -> None:
    core, worker = core_with("a-1"), ScriptedWorker("a-1", per_step=4)
    commands = core.cycle([arrival("r")], ARRIVAL_S)
    for _ in range(3):
        [sent] = jobs_in(commands)
        commands = core.cycle([with_first(worker.run(sent.jobs), "tokens", -1)], ARRIVAL_S)
    [finish] = [command for command in commands if isinstance(command, FinishRequest)]
    assert finish.status is OutcomeStatus.FAILED
    assert "no valid answer" in str(finish.error)


def test_the_top_tokens_of_a_late_result_are_dropped() -> None:
    core, worker = core_with("a-1"), ScriptedWorker("a-1", per_step=4)
    [sent] = jobs_in(core.cycle([arrival("r", logprobs=True, top_logprobs=1)], ARRIVAL_S))
    [ticket], results = unpack_int64(sent.jobs.tickets).tolist(), worker.run(sent.jobs)

    def with_top(token: int) -> StepResults:
        columns = {"tokens": pack_int32([token]), "confidences": pack_float32([0.5])}
        top = StepTopTokens(ticket=ticket, positions=pack_int32([0]), **columns)
        return msgspec.structs.replace(results, top_tokens=[top])

    core.cycle([with_top(10)], ARRIVAL_S)
    core.cycle([with_top(11)], ARRIVAL_S)
    kept = present(core.table.entry(core.table.row_of["r"]).top_tokens)
    assert kept.tokens[0].tolist() == [10]


@pytest.mark.parametrize("column", COLUMNS)
def test_the_steps_of_malformed_results_run_again_at_once(column: str) -> None:
    core, workers = core_with("a-1", "b-1"), {name: ScriptedWorker(name, per_step=4) for name in ("a-1", "b-1")}
    sent = jobs_in(core.cycle([arrival("r"), arrival("s")], ARRIVAL_S))
    bad, good = (workers[jobs.instance_id].run(jobs.jobs) for jobs in sent)
    bad = msgspec.structs.replace(bad, **{column: getattr(bad, column) + b"\0"})
    [*_, again] = jobs_in(core.cycle([bad, good], ARRIVAL_S))
    [refused] = core.table.pipeline.in_flight().tolist()  # it is a suspect, and runs alone
    assert (core.table.steps[refused], core.table.attempts[refused]) == (0, 1)
    assert again.instance_id == good.instance_id


@pytest.mark.parametrize(
    ("latency_s", "counted_s"),
    [(0.01, 0.01), (3600.0, 3600.0), (float("nan"), 0.0), (float("inf"), 0.0), (-1.0, 0.0), (1e300, 0.0)],
)
def test_only_a_possible_latency_reaches_the_statistics(latency_s: float, counted_s: float) -> None:
    core, worker = core_with("a-1"), ScriptedWorker("a-1", per_step=4)
    [sent] = jobs_in(core.cycle([arrival("r")], ARRIVAL_S))
    core.cycle([msgspec.structs.replace(worker.run(sent.jobs), latency_s=latency_s)], ARRIVAL_S)
    row = core.table.row_of["r"]
    assert (core.table.steps[row], core.table.step_s[row]) == (1, counted_s)


@pytest.mark.parametrize("cached", [-(2**31), -1, 65, 2**31 - 1])
def test_an_impossible_number_of_cached_tokens_does_not_reach_the_costs(cached: int) -> None:
    core, worker = core_with("a-1"), ScriptedWorker("a-1", per_step=4)
    [sent] = jobs_in(core.cycle([arrival("r", prompt_tokens=64)], ARRIVAL_S))
    results = msgspec.structs.replace(worker.run(sent.jobs), cached=pack_int32([cached]), latency_s=1.0)
    core.cycle([results], ARRIVAL_S)
    row = core.table.row_of["r"]
    assert (core.table.steps[row], core.table.cached_tokens[row]) == (1, 64 if cached > 0 else 0)
    assert core.fleet.correction[core.fleet.index_of["a-1"]] == 1.0


def test_only_the_first_step_counts_the_cached_tokens_of_the_prompt() -> None:
    """A later arrival finds the pages that the request itself has written."""
    core, worker = core_with("a-1"), ScriptedWorker("a-1", per_step=4)
    [sent] = jobs_in(core.cycle([arrival("r", prompt_tokens=64)], ARRIVAL_S))
    for cached in (32, 64):
        results = msgspec.structs.replace(worker.run(sent.jobs), cached=pack_int32([cached]))
        [sent] = jobs_in(core.cycle([results], ARRIVAL_S))
    row = core.table.row_of["r"]
    assert core.table.cached_tokens[row] == 32
    [checkpoint] = take_checkpoints(core.table, np.array([row]))
    assert checkpoint.cached_tokens == 32


@settings(max_examples=25)
@given(
    results=st.builds(
        StepResults,
        instance_id=st.sampled_from(["a-1", "unknown"]),
        epoch=st.sampled_from([EPOCH, 0]),
        **dict.fromkeys((*COLUMNS, "positions"), st.binary(max_size=48)),
        failures=st.lists(st.builds(StepFailure, ticket=st.integers(0, 2**63 - 1), message=st.text()), max_size=2),
        latency_s=st.floats(),
    ),
    keeps=st.sets(st.sampled_from(["tickets", "steps", "counts", "positions", "tokens", "confidences"])),
)
def test_no_result_ends_the_scheduler_or_writes_an_invalid_token(results: StepResults, keeps: set[str]) -> None:
    """Some columns are those of a valid answer, the others are arbitrary bytes."""
    core, worker = core_with("a-1"), ScriptedWorker("a-1", per_step=4)
    [sent] = jobs_in(core.cycle([arrival("r"), arrival("s")], ARRIVAL_S))
    valid = worker.run(sent.jobs)
    core.cycle([msgspec.structs.replace(results, **{name: getattr(valid, name) for name in keeps})], ARRIVAL_S)
    written = core.table.outputs.tokens[core.table.outputs.tokens != MASKED]
    assert ((written >= 0) & (written < VOCAB) & (written != MASK_ID)).all()


def saved_checkpoint() -> SaveCheckpoint:
    """That of a request with two blocks, after the first one."""
    core, worker = core_with("a-1"), ScriptedWorker("a-1", per_step=32)
    [sent] = jobs_in(core.cycle([arrival("r", output_tokens=64)], ARRIVAL_S))
    [saved] = [c for c in core.cycle([worker.run(sent.jobs)], ARRIVAL_S) if isinstance(c, SaveCheckpoint)]
    return saved


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("output_ids", b"odd"),
        ("output_ids", pack_int32([-5] * 32)),
        ("output_ids", pack_int32([VOCAB] * 32)),
        ("output_ids", pack_int32([MASK_ID] * 32)),
        ("steps_at", b"\x00"),
        ("tokens_at", pack_int32([-1])),
        ("step_s", float("nan")),
        ("threshold_tokens", float("inf")),
    ],
)
def test_a_damaged_checkpoint_costs_only_the_progress_that_it_held(column: str, value: object) -> None:
    checkpoint = saved_checkpoint().checkpoint
    for damaged, blocks in ((False, 1), (True, 0)):
        core = core_with("a-1")
        stored = msgspec.structs.replace(checkpoint, **{column: value}) if damaged else checkpoint
        core.cycle([msgspec.structs.replace(arrival("r", output_tokens=64), checkpoint=stored)], ARRIVAL_S)
        assert core.table.block[core.table.row_of["r"]] == blocks


any_position = st.one_of(st.integers(0, 4), st.integers(-(2**31), 2**31 - 1))


@given(st.lists(st.lists(any_position, max_size=4), max_size=5))
def test_a_step_is_invalid_exactly_if_it_has_a_position_twice(steps: list[list[int]]) -> None:
    positions = np.array([position for step in steps for position in step], dtype=np.int32)
    counts, stats = np.array([len(step) for step in steps], dtype=np.int32), np.zeros((len(steps), 5), np.float32)
    others = np.full(len(positions), 7, np.int32), np.full(len(positions), 0.5, np.float32)
    found = invalid_steps(counts, positions, *others, stats, vocab_size=10, mask_token_id=9)
    expected = [len(set(step)) < len(step) for step in steps]
    assert (found.tolist() if found is not None else [False] * len(steps)) == expected


def short(name: str, *, stream: bool = False) -> RequestArrived:
    return arrival(name, prompt_tokens=3, output_tokens=8, block_length=4, stream=stream)


def test_requests_of_a_quarantined_instance_start_again_on_another() -> None:
    cell = ScriptedCell(scheduler_core(), {"a-1": ScriptedWorker("a-1", per_step=4)})
    core = cell.core
    cell.answer(cell.send(registered("a-1"), short("r"), short("streamed", stream=True)))
    rows = [core.table.row_of[name] for name in ("r", "streamed")]
    assert [int(core.table.block[row]) for row in rows] == [1, 1]
    commands = cell.send(InstanceQuarantined("a-1"), InstanceLost("a-1"))
    assert (core.table.output_ids(rows[0]) == MASKED).all()
    assert [int(core.table.block[row]) for row in rows] == [0, 1]  # clients have read the tokens of the other
    assert core.table.attempts[rows].tolist() == [0, 0]
    assert not core.table.suspect[rows].any()
    [saved] = [c for c in commands if isinstance(c, SaveCheckpoint)]
    assert (saved.request_id, saved.checkpoint.output_ids) == ("r", b"")  # the next scheduler starts it again, too
    cell.workers["b-1"] = ScriptedWorker("b-1", per_step=4)
    cell.serve(cell.send(registered("b-1")))
    assert len(cell.finished) == 2
    for finish in cell.finished:
        assert finish.status is OutcomeStatus.COMPLETED
        assert finish.output_ids.tolist() == list(range(FIRST_TOKEN, FIRST_TOKEN + 8))
        stats = present(finish.stats)
        assert "a-1" in stats.instances
        assert stats.mean_threshold <= max(core.settings.thresholds)
        assert ("a-1" in finish.written_by) is finish.arrived.request.stream


def test_a_quarantine_spares_the_requests_of_other_instances() -> None:
    cell = ScriptedCell(scheduler_core(), {name: ScriptedWorker(name, per_step=4) for name in ("a-1", "b-1")})
    cell.answer(cell.send(registered("a-1"), registered("b-1"), *[short(f"r{i}") for i in range(4)]))
    table, fleet = cell.core.table, cell.core.fleet
    rows = np.array(list(table.row_of.values()))
    is_spared = table.instance[rows] == fleet.index_of["b-1"]
    assert 0 < is_spared.sum() < len(rows)
    cell.send(InstanceQuarantined("a-1"), InstanceLost("a-1"))
    assert (table.block[rows] == is_spared).all()


def test_a_quarantine_fails_a_request_that_had_too_many_attempts_before() -> None:
    """The scheduler before stopped after the checkpoint and before the outcome."""
    before, core = scheduler_core(), scheduler_core()
    before.cycle([short("r")], ARRIVAL_S)
    [checkpoint] = take_checkpoints(before.table, np.array([0]))
    checkpoint = msgspec.structs.replace(checkpoint, attempts=MAX_ATTEMPTS)
    core.cycle([registered("a-1"), msgspec.structs.replace(short("r"), checkpoint=checkpoint)], ARRIVAL_S)
    commands = core.cycle([InstanceQuarantined("a-1"), InstanceLost("a-1")], ARRIVAL_S + 1)
    [finish] = [c for c in commands if isinstance(c, FinishRequest)]
    assert finish.status is OutcomeStatus.FAILED
