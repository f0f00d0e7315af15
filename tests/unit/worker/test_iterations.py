"""The numbers of iterations: the engine runs the jobs of one before those of the next, and none holds up the others."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from services.worker.engine.engine import Engine
from shared.arrays import pack_int32, pack_int64, unpack_int64
from shared.errors import BadInput
from shared.messages.steps import StepJobs
from tests.support.engines import engine_of, tickets
from tests.support.random_model import MASK_ID
from tests.support.steps import Decode, jobs_for, run_step


def request(ticket: int, *, threshold: float = 1.0) -> Decode:
    prompt = np.random.default_rng(ticket).integers(0, 50, 5).tolist()
    return Decode(ticket, prompt, 32, 16, threshold, MASK_ID)


def numbered(decodes: Sequence[Decode], *batches: int, step: int = 0) -> StepJobs:
    """The steps `step` of these requests, for these iterations; the first ones bring the states."""
    jobs = jobs_for(list(decodes))
    steps, states = pack_int32([step] * len(decodes)), [] if step else jobs.states
    return msgspec.structs.replace(jobs, steps=steps, states=states, batches=pack_int32(batches))


def iterations(engine: Engine) -> list[list[int]]:
    """The tickets of each iteration until none is left."""
    return [sorted(tickets(results)) for results in iter(engine.iterate, None)]


def test_jobs_of_a_later_iteration_wait() -> None:
    engine = engine_of()
    engine.accept(numbered([request(t) for t in range(4)], 2, 1, 2, 1))
    assert iterations(engine) == [[1, 3], [0, 2]]


def test_jobs_that_come_late_for_their_iteration_run_in_the_next_one() -> None:
    engine = engine_of()
    first, late = request(1), request(2)
    engine.accept(numbered([first], 1))
    assert iterations(engine) == [[1]]
    engine.accept(numbered([first], 2, step=1))
    engine.accept(numbered([first], 3, step=2))
    engine.accept(numbered([late], 1))
    assert iterations(engine) == [[1, 2], [1]]


def test_an_iteration_without_a_job_that_can_run_is_passed_over() -> None:
    """Its requests are dropped, unknown, or past this step."""
    engine = engine_of()
    dropped, repeated, good = (request(t) for t in range(3))
    engine.accept(numbered([dropped, repeated], 1, 1))
    assert iterations(engine) == [[0, 1]]
    engine.accept(numbered([dropped], 2, step=1))
    engine.accept(msgspec.structs.replace(numbered([repeated], 3), states=[]))
    engine.accept(msgspec.structs.replace(numbered([request(7)], 4), states=[]))
    results = run_step(engine, msgspec.structs.replace(numbered([good], 5), drops=pack_int64([0])))
    assert (tickets(results), unpack_int64(results.missing).tolist()) == ([2], [7])
    assert not engine.waiting


def test_an_obsolete_job_does_not_hold_up_the_next_iteration() -> None:
    """At threshold 0 the first step ends the block, so the step sent ahead has nothing to run."""
    engine = engine_of()
    ends, goes_on = request(1, threshold=0.0), request(2)
    engine.accept(numbered([ends], 1))
    engine.accept(numbered([ends], 2, step=1))
    engine.accept(numbered([goes_on], 3))
    assert iterations(engine) == [[1], [2]]


def test_jobs_without_a_number_run_in_any_iteration() -> None:
    engine = engine_of()
    engine.accept(numbered([request(1)], 5))
    engine.accept(jobs_for([request(2)]))
    engine.accept(numbered([request(3)], 6))
    assert iterations(engine) == [[2], [1], [3]]
    engine.accept(jobs_for([request(4), request(5)]))
    assert iterations(engine) == [[4, 5]]


def test_jobs_of_an_iteration_that_exceed_its_limits_go_first_in_the_next_one() -> None:
    engine = engine_of(requests=2)
    engine.accept(numbered([request(t) for t in range(4)], 1, 1, 1, 2))
    assert iterations(engine) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("change", [{"epoch": 2}, {"forget_below": 1}], ids=["fail-over", "registered again"])
def test_iterations_are_counted_again_for_another_scheduler_or_registration(change: dict[str, int]) -> None:
    engine = engine_of()
    engine.accept(numbered([request(1)], 9))
    assert iterations(engine) == [[1]]
    engine.accept(msgspec.structs.replace(numbered([request(2), request(3)], 1, 2), **change))
    assert iterations(engine) == [[2], [3]]


def test_a_message_whose_iteration_numbers_do_not_fit_its_jobs_is_refused() -> None:
    with pytest.raises(BadInput, match="do not fit together"):
        engine_of().accept(numbered([request(1)], 1, 2))
