"""The scheduler and real engines: an output has its pinned tokens, which take no step and do not count as free."""

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
import torch

from services.scheduler.events import FinishRequest, RequestArrived, RequestEstimates
from services.scheduler.policies.dilaserve import DiLaServePolicy
from services.scheduler.policies.migration import MigrationPolicy
from services.worker.engine.cache_mode import CacheMode
from services.worker.model.decoder import WHOLE
from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from shared.arrays import Int32, pack_int32
from shared.messages.requests import Request
from shared.pinned import FREE
from tests.builders import ARRIVAL_S, scheduler_core
from tests.support.golden import COPY
from tests.support.served_cell import ServedCell

THRESHOLD, BLOCK, BLOCKS, PROMPT = 0.9, 8, 4, 6
LENGTH = BLOCK * BLOCKS
MODES = [CacheMode.NONE, CacheMode.PREFIX, CacheMode.DUAL]
# A whole block, the first token of one, and some in between and behind.
POSITIONS = [*range(8, 16), 16, 20, 21, *range(25, 32)]


@cache
def runner(family: str, cached: bool) -> Runner:
    return Runner(load(COPY / family / "seed1", torch.float32, torch.device("cpu"), WHOLE), 1024 if cached else 0)


def pinned(positions: list[int] = POSITIONS) -> Int32:
    tokens = np.full(LENGTH, FREE, dtype=np.int32)
    tokens[positions] = 10 + np.array(positions)
    return tokens


def request(name: str, tokens: Int32 | None = None, **fields: object) -> RequestArrived:
    """Of the same name, with the same prompt."""
    prompt = np.random.default_rng(ord(name[0])).integers(10, 50, PROMPT).astype(np.int32)
    given = b"" if tokens is None else pack_int32(tokens)
    own = Request(request_id=name, output_tokens=LENGTH, block_length=BLOCK, pinned=given, **fields)  # type: ignore[arg-type]
    return RequestArrived(own, prompt, LENGTH, 1e6, ARRIVAL_S)


def serve(
    family: str, mode: CacheMode, arrivals: Mapping[int, list[RequestArrived]], *, lookahead: int, lost_at: int = -1
) -> dict[str, FinishRequest]:
    """`arrivals`: by cycle. At the cycle `lost_at` another instance takes the place of the first one."""
    runners = [runner(family, mode is not CacheMode.NONE)]
    cell = ServedCell(runners, 1024, THRESHOLD, lookahead=lookahead, mode=mode)
    for cycle in range(300):
        if cycle == lost_at:
            cell.replace_instance()
        cell.cycle(arrivals.get(cycle, []))
        if len(cell.finished) == sum(map(len, arrivals.values())):
            return cell.finished
    raise AssertionError("not all requests ended")


def output(finish: FinishRequest) -> list[int]:
    tokens: list[int] = finish.output_ids.tolist()
    return tokens


def steps(finish: FinishRequest) -> int:
    assert finish.stats is not None
    return finish.stats.steps


@pytest.mark.parametrize(
    ("family", "mode", "lookahead"),
    [*(("llada", mode, 1) for mode in MODES), ("dream", CacheMode.DUAL, 1), ("llada", CacheMode.DUAL, 0)],
)
def test_an_output_has_its_pinned_tokens_alone_in_company_and_after_a_move(
    family: str, mode: CacheMode, lookahead: int
) -> None:
    alone = serve(family, mode, {0: [request("r", pinned())]}, lookahead=lookahead)["r"]
    assert np.array(output(alone))[POSITIONS].tolist() == pinned()[POSITIONS].tolist()
    assert alone.stats is not None
    assert alone.stats.unmasked_tokens == LENGTH - len(POSITIONS)
    others = [request("a", pinned([0, 1, 30])), request("b"), request("c", pinned(list(range(24))))]
    together = serve(family, mode, {0: others[:2], 1: [request("r", pinned())], 3: others[2:]}, lookahead=lookahead)
    assert output(together["r"]) == output(alone)
    for lost_at in range(1, steps(alone), 4):
        moved = serve(family, mode, {0: [request("r", pinned())]}, lookahead=lookahead, lost_at=lost_at)["r"]
        assert output(moved) == output(alone), lost_at


def test_later_pinned_tokens_change_what_is_written_before_them() -> None:
    free = serve("llada", CacheMode.NONE, {0: [request("r")]}, lookahead=0)["r"]
    infilled = serve("llada", CacheMode.NONE, {0: [request("r", pinned(list(range(8, 32))))]}, lookahead=0)["r"]
    assert output(infilled)[:BLOCK] != output(free)[:BLOCK]


def test_whole_blocks_of_pinned_tokens_take_no_step() -> None:
    infilled = serve("llada", CacheMode.DUAL, {0: [request("r", pinned(list(range(1, 32))))]}, lookahead=1)["r"]
    assert steps(infilled) == 1


def test_estimates_features_and_load_control_count_free_tokens_only() -> None:
    """A request with pinned tokens counts as one without them whose output has the free tokens."""
    core = scheduler_core(
        lambda estimates: DiLaServePolicy(candidates=np.array([0.9]), estimates=estimates, moves=MigrationPolicy.NEVER),
        tokens_per_step=(2.0,),
        granularity=0,
        asks_predictor=True,
    )
    tokens = pinned([*range(4), *range(16, 32)])  # 4 free ones, then 8
    commands = core.cycle([request("r", tokens)], ARRIVAL_S)
    [estimate] = [command for command in commands if isinstance(command, RequestEstimates)]
    row = core.table.row_of["r"]
    assert core.table.steps_left[row].tolist() == [12 / 2]
    assert core.estimates.remaining(np.array([row]))[0].tolist() == [[6.0]]
    assert (estimate.masks_left.tolist(), estimate.blocks_left.tolist()) == ([12], [2])
    assert estimate.features[0, :5].tolist() == [12, 0, 0, 0, 0]
