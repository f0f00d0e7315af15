"""The placement, moves and thresholds of each policy on the same cluster."""

import numpy as np
import pytest

from services.scheduler import events as ev
from services.scheduler.policies.migration import MigrationPolicy
from services.scheduler.policies.policy import LOAD_CONTROL_INTERVAL_S
from shared.arrays import unpack_float32, unpack_int32
from shared.messages.steps import StepKind
from tests.builders import arrival
from tests.support.present import present
from tests.support.scripted_cell import THRESHOLDS, draining, jobs_in, make_cell, registered
from tests.support.scripted_worker import ScriptedWorker


def threshold_of(commands: list[ev.Command]) -> float:
    [sent] = jobs_in(commands)
    return round(float(unpack_float32(sent.jobs.thresholds)[-1]), 6)


# Alone, a step of 128 tokens takes 0.129 s; 64 tokens take 16, 32 or 64 steps by threshold.
@pytest.mark.parametrize(
    ("slo_s", "margin_steps", "floor", "expected"),
    [
        *((64 * 0.13, 0.0, 0.0, 0.9), (33 * 0.129, 0.0, 0.0, 0.7), (17 * 0.129, 0.0, 0.0, 0.5), (0.1, 0.0, 0.0, 0.5)),
        *((64.5 * 0.129, 0.0, 0.0, 0.9), (64.5 * 0.129, 1.0, 0.0, 0.7)),  # steps in reserve
        *((0.1, 0.0, 0.6, 0.7), (0.1, 0.0, 0.95, 0.95)),
    ],
)
def test_the_threshold_falls_with_the_deadline_to_the_clients_floor(
    slo_s: float, margin_steps: float, floor: float, expected: float
) -> None:
    cell = make_cell({"a-1": 1}, load_control=False, margin_steps=margin_steps)
    assert threshold_of(cell.send(arrival("r", slo_s=slo_s, min_threshold=floor))) == expected


@pytest.mark.parametrize(("exact", "tokens"), [(False, 2 * 128 + 14 * 32), (True, 96 + 15 * 32 + 32)])
def test_load_control_counts_the_tokens_that_steps_feed(*, exact: bool, tokens: int) -> None:
    """At the lowest threshold, 64 tokens in two blocks take 16 steps. With an exact cache the first step feeds prompt
    and block, and the first one of the second block two blocks."""
    cell = make_cell({"a-1": 1}, caching=True, exact=exact)
    cell.send(arrival("r"))
    assert present(cell.core.load).least_tokens == tokens


@pytest.mark.parametrize(
    ("later_s", "came"), [(LOAD_CONTROL_INTERVAL_S, []), (0.0, ["new"])], ids=["in time", "one comes"]
)
def test_load_control_runs_periodically_and_when_a_request_arrives(later_s: float, came: list[str]) -> None:
    cell = make_cell({"a-1": 1})
    cell.send(*[arrival(f"r{i}", slo_s=300.0) for i in range(60)])
    table = cell.core.table
    cell.send(*[ev.RequestCancelled(f"r{i}") for i in range(59)])
    assert table.level[table.row_of["r59"]] < THRESHOLDS[-1]
    cell.now_s += later_s
    cell.send(*[arrival(name, slo_s=300.0) for name in came])
    assert table.level[table.row_of["r59"]] == THRESHOLDS[-1]


def test_requests_of_guaranteed_priority_keep_all_thresholds() -> None:
    cell = make_cell({"a-1": 1}, guaranteed_priority=10)
    crowd = [arrival(f"r{i}", slo_s=30.0) for i in range(40)]
    cell.send(*crowd, arrival("vip", slo_s=30.0, priority=10))
    table = cell.core.table
    assert table.level[table.row_of["vip"]] == THRESHOLDS[-1]
    assert table.level[table.row_of["r39"]] == THRESHOLDS[0]


def test_an_outcome_contains_the_decision_for_each_step_and_its_inputs() -> None:
    """Alone, a step of 128 tokens takes 0.129 s; 32 steps are left at 0.7, and 64 at 0.9."""
    cell = make_cell({"a-1": 1}, caching=True, load_control=False, per_step=16)
    commands = cell.send(arrival("r", slo_s=5.0))
    cell.now_s += 0.5
    cell.serve(commands)
    [finish] = cell.finished
    decisions = present(finish.decisions)
    assert decisions.instances == ["a-1"]
    assert unpack_int32(decisions.blocks).tolist() == [0, 0, 1, 1]
    assert unpack_int32(decisions.kinds).tolist() == [StepKind.RECOMPUTE, StepKind.CACHE] * 2
    assert unpack_int32(decisions.placed_on).tolist() == [0] * 4
    assert unpack_int32(decisions.batch_requests).tolist() == [1] * 4
    np.testing.assert_allclose(unpack_float32(decisions.at_s), [0.0, 0.5, 0.5, 0.5], atol=1e-4)
    np.testing.assert_allclose(unpack_float32(decisions.thresholds), [0.9, 0.9, 0.9, 0.9])
    np.testing.assert_allclose(unpack_float32(decisions.allowed), [0.9] * 4)
    np.testing.assert_allclose(unpack_float32(decisions.step_latency_s), [0.129] * 4, rtol=1e-3)
    left_s = 2 * 0.129 + 62 * 0.033  # two recompute steps of 128 tokens, the others of a block
    np.testing.assert_allclose(unpack_float32(decisions.time_left_s)[0], left_s, rtol=1e-3)


def test_a_step_runs_on_the_fastest_instance() -> None:
    [sent] = jobs_in(make_cell({"slow-1": 1, "fast-1": 2}).send(arrival("r")))
    assert sent.instance_id == "fast-1"


@pytest.mark.parametrize(
    ("policy", "caching", "moves"),
    [("paper", False, True), ("llumnix", False, True), ("infaas", False, False), ("fixed", False, False),
     ("paper", True, False), ("llumnix", True, False), ("dilaserve", False, False)],
)  # fmt: skip
def test_a_request_moves_to_an_idle_instance_if_its_policy_allows_it(policy: str, caching: bool, moves: bool) -> None:
    """Two requests share an instance when another one joins; their next step is within a block."""
    cell = make_cell({"a-1": 1}, caching=caching, policy=policy)
    cell.workers["b-1"] = ScriptedWorker("b-1", 4)
    commands = cell.send(arrival("r"), arrival("s"))
    cell.send(registered("b-1"))
    sent = jobs_in(cell.answer(commands))
    assert ({s.instance_id for s in sent} == {"a-1", "b-1"}) is moves


def test_a_policy_without_estimates_asks_no_predictor() -> None:
    cell = make_cell({"a-1": 1}, policy="infaas", per_step=32)
    commands = cell.send(arrival("r"))
    while jobs_in(commands):
        commands = cell.answer(commands)
        assert estimate_requests_in(commands) == []
    assert len(cell.finished) == 1


@pytest.mark.parametrize(("exact", "instances"), [(False, {"a-1", "b-1"}), (True, {"a-1"})])
def test_with_a_cache_a_request_moves_where_it_recomputes_anyway(exact: bool, instances: set[str]) -> None:
    """Its block ends with the first step. With an exact cache the next one needs no recompute step, unless it moves."""
    cell = make_cell({"a-1": 1}, caching=True, exact=exact, per_step=32)
    cell.workers["b-1"] = ScriptedWorker("b-1", 32)
    commands = cell.send(arrival("r"), arrival("s"))
    cell.send(registered("b-1"))
    assert {s.instance_id for s in jobs_in(cell.answer(commands))} == instances


def test_moving_at_any_step_costs_an_additional_recompute_step() -> None:
    cell = make_cell({"a-1": 1}, caching=True, moves=MigrationPolicy.AT_ANY_STEP)
    cell.workers["b-1"] = ScriptedWorker("b-1", 4)
    commands = cell.send(arrival("r"), arrival("s"))
    cell.send(registered("b-1"))
    kinds = {s.instance_id: unpack_int32(s.jobs.kinds)[0] for s in jobs_in(cell.answer(commands))}
    assert kinds == {"a-1": StepKind.CACHE, "b-1": StepKind.RECOMPUTE}


def test_a_request_that_returns_to_an_instance_brings_its_whole_canvas() -> None:
    """It moves to a new instance at its second block, and back at its third, when the other request is cancelled."""
    cell = make_cell({"a-1": 1}, caching=True, per_step=32)
    cell.workers["b-1"] = ScriptedWorker("b-1", 32)
    commands = cell.send(arrival("r", output_tokens=128), arrival("s", output_tokens=128))
    cell.send(registered("b-1"))
    [stayed, moved] = sorted(jobs_in(cell.answer(commands)), key=lambda command: command.instance_id)
    assert moved.instance_id == "b-1"
    [state] = moved.jobs.states
    cell.workers["a-1"].run(stayed.jobs)
    cell.send(ev.RequestCancelled("s" if state.request_id == "r" else "r"), draining("b-1"))
    [back] = [command for command in jobs_in(cell.answer([moved])) if command.instance_id == "a-1"]
    [state] = back.jobs.states
    assert len(unpack_int32(state.canvas)) == 64 + 128
    cell.serve([back])
    assert cell.finished[-1].output_ids.tolist() == [10 + i for i in range(128)]


def estimate_requests_in(commands: list[ev.Command]) -> list[ev.RequestEstimates]:
    return [c for c in commands if isinstance(c, ev.RequestEstimates)]


def test_an_estimate_is_requested_after_enough_newly_unmasked_tokens() -> None:
    cell = make_cell({"a-1": 1}, per_step=4)
    first = cell.send(arrival("r"))
    second = cell.answer(first)
    assert (estimate_requests_in(first), estimate_requests_in(second)) == ([], [])
    [question] = estimate_requests_in(cell.answer(second))
    assert question.masks_left.tolist() == [56]
    assert question.features.shape == (1, 10)


def test_estimates_change_the_threshold_and_failures_restore_the_one_shot_estimate() -> None:
    cell = make_cell({"a-1": 1}, load_control=False)
    commands = cell.answer(cell.answer(cell.send(arrival("r", slo_s=20.0))))
    [question] = estimate_requests_in(commands)
    bad_news = np.array([[40.0, 55.0, 56.0]])  # each step takes 0.129 s
    cell.now_s += 14.5
    commands = cell.answer(commands)
    assert threshold_of(commands) == 0.7
    cell.send(ev.EstimatesReceived(question.tickets, question.steps, bad_news))
    commands = cell.answer(commands)
    assert threshold_of(commands) == 0.5
    cell.send(ev.EstimatesFailed(question.tickets))
    assert cell.core.totals.predictor_fallbacks == 1
    assert threshold_of(cell.answer(commands)) == 0.7


def test_estimates_are_requested_again_after_the_loss_of_an_instance() -> None:
    cell = make_cell({"a-1": 1, "b-1": 1})
    commands = cell.answer(cell.answer(cell.send(arrival("r"))))
    [question] = estimate_requests_in(commands)
    answer = ev.EstimatesReceived(question.tickets, question.steps, np.ones((1, 3)))
    commands = cell.send(ev.InstanceLost("a-1"), answer)
    assert estimate_requests_in(cell.answer(cell.answer(commands)))


def test_estimates_are_limited_to_possible_numbers_of_steps() -> None:
    cell = make_cell({"a-1": 1})
    cell.send(arrival("r", output_tokens=64))
    ticket, step = cell.core.table.ticket[[0]], cell.core.table.steps[[0]]
    cell.send(ev.EstimatesReceived(ticket, step, np.array([[0.0, 30.0, 900.0]])))
    assert cell.core.estimates.remaining(np.array([0]))[0].tolist() == [[2.0, 30.0, 64.0]]


@pytest.mark.parametrize(("exact", "cache_steps", "recompute_tokens"), [(False, 31, 128), (True, 63, 96)])
def test_the_capacity_is_that_of_full_batches_of_cache_steps_and_one_recompute_step(
    *, exact: bool, cache_steps: int, recompute_tokens: int
) -> None:
    """Algorithm 4: a block of 32 tokens has one recompute step, and one cache step for each other token. With an exact
    cache the whole output of 64 tokens has one, of the prompt and the first block."""
    cell = make_cell({"a-1": 1}, caching=True, exact=exact)
    cell.send(registered("a-1", max_batch_requests=16), arrival("r"))
    batch_tokens = 16 * 32
    tokens = cache_steps * batch_tokens + recompute_tokens
    seconds = cache_steps * (batch_tokens + 1) / 1000 + (recompute_tokens + 1) / 1000
    assert present(cell.core.load).throughput_tokens_per_s == pytest.approx(tokens / seconds)


def test_the_window_of_load_control_is_the_mean_slo() -> None:
    cell = make_cell({"a-1": 1})
    cell.send(arrival("r0", slo_s=10.0), arrival("r1", slo_s=40.0))
    load = present(cell.core.load)
    assert load.capacity_tokens == pytest.approx(25.0 * load.throughput_tokens_per_s)


def test_the_predicted_time_is_at_the_present_load_of_the_instance() -> None:
    """A cache step of four requests takes 0.129 s: 64 steps take 9 s, 32 steps 4.9 s. Alone they would take 3.1 s."""
    cell = make_cell({"a-1": 1}, caching=True, load_control=False)
    [sent] = jobs_in(cell.send(*[arrival(f"r{i}", slo_s=6.0) for i in range(4)]))
    np.testing.assert_allclose(unpack_float32(sent.jobs.thresholds), 0.7)
