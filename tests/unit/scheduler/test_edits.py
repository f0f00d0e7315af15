"""Served requests whose tokens may change have the reference's outputs, steps and edits, and streams."""

from functools import cache

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from services.scheduler.events import RequestArrived
from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from shared.arrays import unpack_int32
from shared.messages.requests import Request
from tests.builders import ARRIVAL_S
from tests.support.golden import BLOCK_SETS, GOLDEN, GoldenCase, threshold_cases
from tests.support.present import present
from tests.support.served_cell import ServedCell, streamed, written

[SET] = [name for name in BLOCK_SETS if name == "llada2/seed1"]
ROOM = 2048


@cache
def runner() -> Runner:
    return Runner(load(GOLDEN / SET, torch.float32, "cpu"), ROOM)


def cases() -> list[GoldenCase]:
    return threshold_cases((SET,), ("block-edit",))


def arrival(case: GoldenCase, name: str = "r", *, stream: bool = False) -> RequestArrived:
    offset = len(case.prompt) % case.block_length
    length = len(case.output) + -(len(case.prompt) + len(case.output)) % case.block_length
    request = Request(request_id=name, block_length=case.block_length, stream=stream, logprobs=stream)
    prompt = np.array(case.prompt, dtype=np.int32)
    threshold = present(case.edit_threshold)
    return RequestArrived(request, prompt, length, 1e6, ARRIVAL_S, block_offset=offset, edit_threshold=threshold)


def cell_of(case: GoldenCase, lookahead: int = 1) -> ServedCell:
    return ServedCell([runner()], ROOM, case.threshold, lookahead=lookahead)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_each_case_has_the_reference_output_steps_and_edits(lookahead: int) -> None:
    assert len(cases()) > 5
    for case in cases()[::4]:
        cell = cell_of(case, lookahead)
        cell.serve([arrival(case)])
        stats = present(cell.finished["r"].stats)
        assert cell.output()[: len(case.output)] == case.output, case.name
        assert (stats.steps, stats.edits) == (case.nfe, sum(len(step["edit_pos"]) for step in case.steps)), case.name
        unmasked = sum(len(step["unmask_pos"]) for step in case.steps)
        assert stats.unmasked_tokens == cell.core.totals.tokens == unmasked, case.name  # an edit unmasks nothing


def test_a_stream_sends_each_block_when_it_is_final() -> None:
    changed = 0
    for case in cases()[::4]:
        cell = cell_of(case)
        cell.serve([arrival(case, stream=True)])
        assert streamed(cell.progress) == dict(enumerate(cell.output())), case.name
        assert len([each for each in cell.progress if not each.is_draft]) == len({s["block"] for s in case.steps})
        drafts = [each for each in cell.progress if each.is_draft]
        changed += len([1 for each in drafts for at, token in written(each) if token != cell.output()[at]])
        confidences = {
            int(position): value
            for each in cell.progress
            for position, value in zip(unpack_int32(each.positions), np.frombuffer(each.confidences, "f4"), strict=True)
        }
        assert confidences == dict(enumerate(present(cell.finished["r"].confidences).tolist()))
    assert changed > 20


def test_estimates_count_the_steps_that_only_look_for_edits() -> None:
    case = cases()[0]
    cell = cell_of(case)
    cell.cycle([arrival(case), replace(arrival(case, "plain"), edit_threshold=1.0)])
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
