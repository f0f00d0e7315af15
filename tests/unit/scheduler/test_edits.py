"""Served requests whose tokens may change have the reference's outputs: alone, in company, moved, and resumed."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import count

import numpy as np
import pytest
import torch

from services.scheduler.events import RequestArrived
from services.scheduler.policies.migration import MigrationPolicy
from services.worker.cache.prefix_pages import NO_PREFIXES, PrefixSize
from services.worker.model.decoder import PackedDecoder
from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from shared.arrays import unpack_int32
from shared.messages.requests import Progress, Request
from tests.builders import ARRIVAL_S
from tests.support.golden import BLOCK_SETS, GOLDEN, GoldenCase, threshold_cases
from tests.support.served_cell import ServedCell

[SET] = [name for name in BLOCK_SETS if name == "llada2/seed1"]
ROOM, PAGES = 2048, 16


@cache
def decoder() -> PackedDecoder:
    return load(GOLDEN / SET, torch.float32, "cpu")


def cases() -> list[GoldenCase]:
    return threshold_cases((SET,), ("block-edit",))


def served(case: GoldenCase, name: str = "r", *, stream: bool = False, logprobs: bool = False) -> RequestArrived:
    offset = len(case.prompt) % case.block_length
    length = len(case.output) + -(len(case.prompt) + len(case.output)) % case.block_length
    assert case.edit_threshold is not None
    request = Request(request_id=name, block_length=case.block_length, stream=stream, logprobs=logprobs)
    prompt = np.array(case.prompt, dtype=np.int32)
    threshold = case.edit_threshold
    return RequestArrived(request, prompt, length, 1e6, ARRIVAL_S, block_offset=offset, edit_threshold=threshold)


def cell_of(
    threshold: float,
    moves: MigrationPolicy = MigrationPolicy.NEVER,
    lookahead: int = 1,
    instances: int = 1,
    page_tokens: int = 0,
) -> ServedCell:
    prefixes = PrefixSize(page_tokens, PAGES) if page_tokens else NO_PREFIXES
    runners = [Runner(decoder(), ROOM + prefixes.tokens) for _ in range(instances)]
    return ServedCell(runners, ROOM, threshold, moves, lookahead, prefixes)


@pytest.mark.parametrize(("lookahead", "stride"), [(0, 4), (1, 4)])
def test_each_case_has_the_reference_output_steps_and_edits(lookahead: int, stride: int) -> None:
    assert len(cases()) > 5
    for case in cases()[::stride]:
        cell = cell_of(case.threshold, lookahead=lookahead)
        cell.serve([served(case)])
        stats = cell.finished["r"].stats
        assert stats is not None
        assert cell.output()[: len(case.output)] == case.output, case.name
        assert (stats.steps, stats.edits) == (case.nfe, sum(len(step["edit_pos"]) for step in case.steps)), case.name
        unmasked = sum(len(step["unmask_pos"]) for step in case.steps)
        assert stats.unmasked_tokens == cell.core.totals.tokens == unmasked, case.name  # an edit unmasks nothing


@pytest.mark.parametrize("moves", [MigrationPolicy.NEVER, MigrationPolicy.AT_ANY_STEP])
@pytest.mark.parametrize("page_blocks", [0, 1])
def test_company_moves_and_the_prefix_cache_change_nothing(moves: MigrationPolicy, page_blocks: int) -> None:
    case = cases()[0]
    cell = cell_of(case.threshold, moves=moves, instances=2, page_tokens=page_blocks * case.block_length)
    others = [served(replace(case, prompt=case.prompt[i:]), f"other-{i}") for i in range(1, 3)]
    cell.serve([served(case, "first")], others, [served(case)], [], [served(case, "last")])
    for name in ("first", "r", "last"):
        assert cell.output(name)[: len(case.output)] == case.output


def test_moved_requests_have_the_reference_output() -> None:
    """Before each of its steps the request leaves its instance."""
    case = cases()[0]
    cell = cell_of(case.threshold, instances=2, lookahead=0)
    cell.serve_moving(served(case))
    stats = cell.finished["r"].stats
    assert stats is not None
    assert stats.migrations > case.nfe / 2
    assert cell.output()[: len(case.output)] == case.output


@pytest.mark.parametrize("stream", [False, True])
def test_each_next_scheduler_continues_with_the_reference_output(*, stream: bool) -> None:
    for case in cases()[::4]:
        cell, arrived = cell_of(case.threshold), served(case, stream=stream, logprobs=True)
        cell.cycle([arrived])
        for cycles in count(7, step=7):
            for _ in range(cycles):
                cell.cycle()
            if cell.finished:
                break
            cell.start_scheduler()
            cell.cycle([replace(arrived, checkpoint=cell.checkpoints.get("r"))])
        assert cell.epoch > 2
        assert cell.output()[: len(case.output)] == case.output, case.name
        if stream:
            assert streamed(cell.progress) == dict(enumerate(cell.output())), case.name


def test_a_stream_sends_each_block_when_it_is_final() -> None:
    changed = 0
    for case in cases()[::4]:
        cell = cell_of(case.threshold)
        cell.serve([served(case, stream=True, logprobs=True)])
        assert streamed(cell.progress) == dict(enumerate(cell.output())), case.name
        assert len([each for each in cell.progress if not each.is_draft]) == len({s["block"] for s in case.steps})
        drafts = [each for each in cell.progress if each.is_draft]
        written = [pair for each in drafts for pair in _pairs(each)]
        changed += len([1 for position, token in written if token != cell.output()[position]])
        finish = cell.finished["r"]
        assert finish.confidences is not None
        confidences = {
            int(position): value
            for each in cell.progress
            for position, value in zip(unpack_int32(each.positions), np.frombuffer(each.confidences, "f4"), strict=True)
        }
        assert confidences == dict(enumerate(finish.confidences.tolist()))
    assert changed > 20


def streamed(progress: Sequence[Progress]) -> dict[int, int]:
    """The final tokens by position; none is sent twice with different values."""
    found: dict[int, int] = {}
    for each in progress:
        for position, token in _pairs(each) if not each.is_draft else ():
            assert found.setdefault(position, token) == token
    return found


def _pairs(progress: Progress) -> list[tuple[int, int]]:
    return list(zip(unpack_int32(progress.positions).tolist(), unpack_int32(progress.tokens).tolist(), strict=True))


def test_estimates_count_the_steps_that_only_look_for_edits() -> None:
    case = cases()[0]
    cell = cell_of(case.threshold)
    cell.cycle([served(case), replace(served(case, "plain"), edit_threshold=1.0)])
    rows = np.array([cell.core.table.row_of[name] for name in ("r", "plain")])
    (with_edits, without), _ = cell.core.estimates.remaining(rows)
    blocks = cell.core.table.blocks_left[rows[0]]
    assert with_edits[0] >= 2 * blocks
    assert without[0] <= cell.core.table.masks_left[rows[1]]
    cell.core.table.steps_left[rows] = 0.0
    least, _ = cell.core.estimates.remaining(rows)
    assert least.tolist() == [[2 * blocks] * least.shape[1], [blocks] * least.shape[1]]
    while "r" not in cell.finished:
        [left], _ = cell.core.estimates.remaining(rows[:1])
        assert left[0] >= 1
        cell.cycle()
