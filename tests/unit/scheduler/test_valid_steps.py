"""A step of an instance writes within its block only, and clears the attempts before it."""

import msgspec

from services.scheduler.events import InstanceLost
from services.scheduler.state.output_buffer import MASKED
from services.scheduler.state.suspects import MAX_ATTEMPTS
from shared.arrays import pack_float32, pack_int32, unpack_int32
from shared.messages.steps import StepResults
from tests.builders import arrival
from tests.support.scripted_cell import jobs_in, make_cell, registered


def test_a_position_behind_the_block_is_not_written() -> None:
    """The block has the first 32 tokens of the output."""
    cell = make_cell({"a-1": 1}, caching=True, per_step=2)
    [result] = cell.answers(cell.send(arrival("r")))
    assert isinstance(result, StepResults)
    beyond = msgspec.structs.replace(
        result,
        counts=pack_int32([3]),
        positions=pack_int32([*unpack_int32(result.positions), 32]),
        tokens=pack_int32([*unpack_int32(result.tokens), 7]),
        confidences=pack_float32([0.5] * 3),
    )
    cell.send(beyond)
    table = cell.core.table
    assert (table.output_ids(table.row_of["r"]) != MASKED).nonzero()[0].tolist() == [0, 1]


def test_a_step_that_ends_clears_the_attempts_before_it() -> None:
    """A request that loses an instance now and then does not fail."""
    cell = make_cell({"a-0": 1}, per_step=2)
    table = cell.core.table
    commands = cell.send(arrival("r"))
    row = table.row_of["r"]
    for number in range(2 * MAX_ATTEMPTS):
        [sent] = jobs_in(commands)
        cell.send(InstanceLost(sent.instance_id))
        assert (table.attempts[row], table.suspect[row]) == (1, True)
        name = f"a-{number + 1}"
        cell.workers[name] = type(cell.workers["a-0"])(name, 2)
        commands = cell.answer(cell.send(registered(name)))
        assert (table.attempts[row], table.suspect[row]) == (0, False)
