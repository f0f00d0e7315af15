"""The difficulty of requests, learnt from their own steps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.events import Command, EstimatesReceived
from shared.arrays import Float64
from tests.builders import arrival
from tests.support.scripted_cell import TOKENS_PER_STEP, ScriptedCell, make_cell

OUTPUT, BLOCK, PER_STEP = 512, 32, 2  # a step at 0.9 unmasks 2 tokens; the mean is 1
MEAN_STEPS_PER_TOKEN = 1 / np.array(TOKENS_PER_STEP)


def run_blocks(blocks: int, policy: str = "fixed") -> tuple[ScriptedCell, list[Command]]:
    """A cell whose request ran some blocks at 0.9."""
    options: dict[str, Any] = {} if policy == "fixed" else {"load_control": False}
    cell = make_cell({"a-1": 1}, per_step=PER_STEP, policy=policy, **options)
    commands = cell.send(arrival("r", output_tokens=OUTPUT))
    for _ in range(blocks * BLOCK // PER_STEP):
        commands = cell.answer(commands)
    return cell, commands


def steps_left(cell: ScriptedCell, row: int = 0) -> Float64:
    left: Float64 = cell.core.estimates.remaining(np.array([row]))[0][0]
    return left


@pytest.mark.parametrize("blocks", [1, 4, 15])
def test_its_own_steps_replace_the_mean_as_a_request_continues(blocks: int) -> None:
    cell, _ = run_blocks(blocks)
    factors = steps_left(cell) / ((OUTPUT - blocks * BLOCK) * MEAN_STEPS_PER_TOKEN)
    assert factors.tolist() == pytest.approx([factors[0]] * 3)  # hard at one threshold, hard at all
    assert 0.5 < factors[0] < 0.5 + 0.1 / blocks


def test_steps_within_a_block_are_subtracted_from_the_estimate() -> None:
    cell, commands = run_blocks(2)
    before = steps_left(cell)
    cell.answer(commands)
    assert steps_left(cell).tolist() == (before - 1).tolist()


def test_the_end_of_a_block_does_not_replace_an_answer_of_the_predictor() -> None:
    cell, commands = run_blocks(1)
    table = cell.core.table
    answer = np.array([50.0, 100.0, 200.0])
    cell.send(EstimatesReceived(table.ticket[[0]], table.steps[[0]], answer[None]))
    for _ in range(BLOCK // PER_STEP):
        commands = cell.answer(commands)
    assert steps_left(cell).tolist() == (answer - BLOCK // PER_STEP).tolist()


def test_the_papers_policy_keeps_the_estimate_made_at_arrival() -> None:
    cell, _ = run_blocks(4, policy="paper")
    done = 4 * BLOCK // PER_STEP
    assert steps_left(cell).tolist() == np.clip(OUTPUT * MEAN_STEPS_PER_TOKEN - done, 12, OUTPUT - 4 * BLOCK).tolist()


def test_a_new_request_begins_with_the_mean_difficulty_of_the_cell() -> None:
    cell = make_cell({"a-1": 1}, per_step=PER_STEP, policy="fixed")
    cell.serve(cell.send(*[arrival(f"r{i}", output_tokens=OUTPUT) for i in range(8)]))
    cell.send(arrival("new", output_tokens=OUTPUT))
    factor = steps_left(cell, cell.core.table.row_of["new"])[-1] / OUTPUT
    assert 0.5 < factor < 0.6  # after some 2,000 steps; the mean began at 1


@pytest.mark.parametrize("caching", [True, False])
def test_blocks_after_the_end_of_most_texts_hardly_count(caching: bool) -> None:
    cell = make_cell({"a-1": 1}, policy="fixed", caching=caching)
    cell.send(arrival("r", output_tokens=OUTPUT))
    before, _ = cell.core.estimates.remaining(np.array([0]))
    for _ in range(500):
        cell.core.estimates.learn_ending(ended=True)
    after, recomputes = cell.core.estimates.remaining(np.array([0]))
    assert (before - after).tolist() == pytest.approx(np.full((1, 3), OUTPUT // BLOCK - 1), abs=0.01)
    assert recomputes.tolist() == (pytest.approx(np.ones((1, 3)), abs=0.01) if caching else after.tolist())


def test_a_new_request_takes_the_steps_of_the_blocks_that_probably_run() -> None:
    """The mean difficulty is that of text, not of the padding after it."""
    cell = make_cell({"a-1": 1}, policy="fixed")
    for _ in range(500):
        cell.core.estimates.learn_ending(ended=True)
    cell.send(arrival("r", output_tokens=OUTPUT))
    assert steps_left(cell).tolist() == pytest.approx((BLOCK * MEAN_STEPS_PER_TOKEN).tolist(), rel=0.01)


def test_texts_that_ignore_their_end_do_not_change_where_texts_are_expected_to_end() -> None:
    cell = make_cell({"a-1": 1}, policy="fixed", per_step=1)
    for _ in range(20):
        cell.core.estimates.learn_ending(ended=True)
    commands = cell.send(arrival("r", output_tokens=OUTPUT, ignore_eos=True))
    before = steps_left(cell)
    cell.serve(commands)
    cell.send(arrival("new", output_tokens=OUTPUT))
    assert steps_left(cell).tolist() == pytest.approx(before.tolist())


@given(ended=st.lists(st.booleans(), max_size=200), output_blocks=st.integers(1, 40), finished_blocks=st.integers(0, 3))
def test_at_least_the_current_block_is_left(ended: list[bool], output_blocks: int, finished_blocks: int) -> None:
    cell = make_cell({"a-1": 1}, policy="fixed", caching=True)
    cell.send(arrival("r", output_tokens=BLOCK * output_blocks))
    blocks_left = max(output_blocks - finished_blocks, 1)
    cell.core.table.blocks_left[0] = blocks_left
    for one in ended:
        cell.core.estimates.learn_ending(ended=one)
    steps, recomputes = cell.core.estimates.remaining(np.array([0]))
    assert np.all(steps >= 1 - 1e-9)
    assert np.all((recomputes >= 0) & (recomputes <= np.minimum(steps, blocks_left)))


@pytest.mark.parametrize(
    ("share", "policy", "corrected"),
    [
        (0.5, "dilaserve", 1.0),
        (1.0, "dilaserve", 1.0),
        (1.2, "dilaserve", 1.2),  # a reserve stays
        (2.0, "dilaserve", 1.25),
        (0.5, "paper", 0.5),
    ],
)
def test_a_predictor_that_is_wrong_by_a_factor_is_corrected(share: float, policy: str, corrected: float) -> None:
    """It answers a share of the true steps. The paper's policy uses its answers as they are."""
    cell = make_cell({"a-1": 1}, policy=policy)
    cell.send(arrival("r"))
    table, total = cell.core.table, 5000
    for done in range(0, total, 50):
        table.steps[0] = done
        answer = np.full((1, 3), share * (total - done))
        cell.core.estimates.apply(table.ticket[[0]], table.steps[[0]], answer)
    factors = table.steps_left[0] / (total - done)
    assert factors.tolist() == pytest.approx([corrected] * 3, abs=0.1)
