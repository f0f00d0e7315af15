"""Served canvases have the text that one instance decodes alone: in company, moved within a canvas, and resumed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.scheduler.events import RequestArrived
from services.scheduler.policies.migration import MigrationPolicy
from services.worker.cache.prefix_pages import PrefixSize
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.canvas_runner import CanvasRunner
from shared.arrays import pack_float32, pack_int32, pack_int64, unpack_int32
from shared.canvases import check_for_canvases, without_effect
from shared.errors import BadInput
from shared.messages.instances import ModelCard
from shared.messages.requests import Request
from shared.messages.steps import StepResults
from shared.model_card import read_model_card
from tests.builders import ARRIVAL_S
from tests.support.canvas_model import open_canvas_model, write_canvas_model
from tests.support.gemma_files import CANVAS
from tests.support.served_cell import ServedCell

ROOM, PAGES, STEPS = 384, 4, 4
THRESHOLD = 0.75
PROMPT = [(7 * i) % 90 + 3 for i in range(21)]
OUTPUT = 2 * CANVAS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_canvas_model(tmp_path_factory.mktemp("model"), rules={"max_denoising_steps": STEPS})


@pytest.fixture(scope="module")
def card(model: Path) -> ModelCard:
    return read_model_card(model, "gemma")


@pytest.fixture(scope="module")
def runners(model: Path) -> list[CanvasRunner]:
    return [open_canvas_model(model, ROOM + PAGES * CANVAS) for _ in range(2)]


@pytest.fixture(scope="module")
def alone(runners: list[CanvasRunner]) -> list[int]:
    options = DecodeOptions(CacheMode.BLOCK, THRESHOLD, CANVAS, OUTPUT)
    return decode_together([CaseRequest("r", PROMPT)], runners[0], options)[0].output_ids


def served(name: str = "r", prompt: Sequence[int] = PROMPT, **fields: object) -> RequestArrived:
    request = Request(request_id=name, block_length=CANVAS, seed=0, **fields)  # type: ignore[arg-type]
    return RequestArrived(request, np.array(prompt, dtype=np.int32), OUTPUT, 1e6, ARRIVAL_S)


def cell_of(
    runners: Sequence[CanvasRunner], moves: MigrationPolicy = MigrationPolicy.NEVER, lookahead: int = 1
) -> ServedCell:
    return ServedCell(runners, ROOM, THRESHOLD, moves, lookahead, PrefixSize(CANVAS, PAGES), canvas_steps=STEPS)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_served_text_is_that_of_an_engine_alone(
    runners: list[CanvasRunner], alone: list[int], lookahead: int
) -> None:
    cell = cell_of(runners[:1], lookahead=lookahead)
    cell.serve([served()])
    stats = cell.finished["r"].stats
    assert stats is not None
    assert cell.output() == alone
    assert (stats.steps, stats.unmasked_tokens) == (2 * STEPS, OUTPUT)
    assert stats.mean_threshold == pytest.approx(THRESHOLD)


@pytest.mark.parametrize("moves", [MigrationPolicy.NEVER, MigrationPolicy.AT_ANY_STEP])
def test_company_and_the_prefix_cache_change_nothing(
    runners: list[CanvasRunner], alone: list[int], moves: MigrationPolicy
) -> None:
    cell = cell_of(runners, moves=moves)
    others = [served(f"other-{i}", PROMPT[i:]) for i in range(1, 3)]
    cell.serve([served("first")], others, [served()], [], [served("last")])
    assert [cell.output(name) for name in ("first", "r", "last")] == [alone] * 3


def test_a_request_that_moves_within_its_canvases_has_the_same_text(
    runners: list[CanvasRunner], alone: list[int]
) -> None:
    """Before each of its steps the request leaves its instance."""
    cell = cell_of(runners, lookahead=0)
    cell.serve_moving(served())
    stats = cell.finished["r"].stats
    assert stats is not None
    assert stats.migrations > STEPS
    assert cell.output() == alone
    assert stats.steps == 2 * STEPS


@pytest.mark.parametrize("stream", [False, True])
def test_each_next_scheduler_continues_with_the_same_text(
    runners: list[CanvasRunner], alone: list[int], *, stream: bool
) -> None:
    cell, arrived = cell_of(runners[:1]), served(stream=stream)
    for cycles in (STEPS - 1, STEPS + 1, 100):
        cell.cycle([replace(arrived, checkpoint=cell.checkpoints.get("r"))])
        for _ in range(cycles):
            cell.cycle()
        if not cell.finished:
            cell.start_scheduler()
    assert cell.epoch == 3
    assert cell.output() == alone


def test_a_stream_sends_whole_canvases(runners: list[CanvasRunner], alone: list[int]) -> None:
    cell = cell_of(runners[:1])
    cell.serve([served(stream=True)])
    sent = [each for each in cell.progress if each.positions]
    assert [len(unpack_int32(each.positions)) for each in sent] == [CANVAS, CANVAS]
    assert [token for each in sent for token in unpack_int32(each.tokens).tolist()] == alone


def test_the_steps_left_are_bounded_by_those_of_the_canvases(runners: list[CanvasRunner]) -> None:
    cell = cell_of(runners[:1], lookahead=0)
    cell.cycle([served()])
    for done in range(2 * STEPS):
        rows = np.array([cell.core.table.row_of["r"]])
        [left], _ = cell.core.estimates.remaining(rows)
        assert 1 <= left[0] <= 2 * STEPS - done
        cell.cycle()
    assert cell.finished


@pytest.mark.parametrize("written", [1, CANVAS - 1])
def test_a_part_of_a_canvas_is_refused(runners: list[CanvasRunner], written: int) -> None:
    cell = cell_of(runners[:1], lookahead=0)
    cell.cycle([served()])
    [results] = cell.events
    assert isinstance(results, StepResults)
    tokens = pack_int32(range(written))
    cell.events = [
        StepResults(
            instance_id=results.instance_id, epoch=results.epoch, tickets=results.tickets, steps=results.steps,
            counts=pack_int32([written]), positions=tokens, tokens=tokens,
            confidences=pack_float32([0.5] * written), confidence_stats=results.confidence_stats,
            missing=pack_int64([]),
        )
    ]  # fmt: skip
    cell.cycle()
    row = cell.core.table.row_of["r"]
    assert cell.core.table.masks_left[row] == OUTPUT
    assert cell.core.table.attempts[row] == 1


@pytest.mark.parametrize(
    ("fields", "form_field", "named"),
    [
        ({"pattern": "a"}, "", "pattern"),
        ({"pattern": "a"}, "guided_regex", "guided_regex"),
        ({"choices": ["a"]}, "", "choices"),
        ({"choices": ["a"]}, "questions", "questions"),
        ({"pinned": b"\0\0\0\0"}, "", "pinned"),
        ({"block_length": 2 * CANVAS}, "", "block_length"),
    ],
)
def test_requests_that_canvases_do_not_serve_are_refused(
    card: ModelCard, fields: dict[str, object], form_field: str, named: str
) -> None:
    request = Request(**({"request_id": "r", "prompt": "a", "block_length": CANVAS} | fields))  # type: ignore[arg-type]
    with pytest.raises(BadInput) as error:
        check_for_canvases(request, card, form_field)
    assert error.value.field == named


def test_fields_that_the_checkpoints_schedule_replaces_have_no_effect(card: ModelCard) -> None:
    request = Request(request_id="r", prompt="a", temperature=0.5, top_k=3)
    assert without_effect(request, card) == ["temperature", "top_k"]


def test_blocks_begin_at_the_prompts_end(card: ModelCard) -> None:
    assert (card.block_length, card.canvas_steps, card.block_offset(21, CANVAS)) == (CANVAS, STEPS, 0)
