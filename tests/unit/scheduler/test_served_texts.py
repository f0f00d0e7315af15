"""Served texts are the same alone, in company, with a prefix cache, moved, and resumed: those sampled by a seed, around
pinned tokens, with edits, and denoised in canvases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from services.scheduler.events import RequestArrived, RequestEstimates
from services.scheduler.policies.dilaserve import DiLaServePolicy
from services.scheduler.policies.migration import MigrationPolicy
from services.worker.cache.prefix_pages import NO_PREFIXES, PrefixSize
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.offline_decoder import CaseRequest, DecodeOptions, decode_together
from services.worker.model.model_runner import Runner
from services.worker.model.weights import load
from shared.arrays import Int32, pack_float32, pack_int32, pack_int64, unpack_int32
from shared.edits import NO_EDITS
from shared.messages.requests import Request
from shared.messages.steps import StepResults
from shared.pinned import FREE, free_positions
from tests.builders import ARRIVAL_S, scheduler_core
from tests.support.canvas_model import open_canvas_model, write_canvas_model
from tests.support.gemma_files import CANVAS
from tests.support.golden import COPY, threshold_cases
from tests.support.present import present
from tests.support.random_model import FAST_DLLM, LLADA, NEMOTRON_LABS, SDAR, random_decoder
from tests.support.served_cell import ServedCell, streamed

ROOM, PAGES = 384, 4
CANVAS_STEPS = 4
PINNED = [*range(8, 16), 16, 20, 21, *range(25, 32)]  # a whole block, the first token of one, some between and behind


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Requests of one kind for two instances; `output`: tokens of a text, up to the end of its last block."""

    runners: Sequence[Runner]
    mode: CacheMode
    threshold: float
    prompt: Sequence[int]
    output: int
    block: int
    fields: Mapping[str, Any]
    page_tokens: int = 0
    canvas_steps: int = 0
    edit_threshold: float = NO_EDITS
    spread: float = 0.0  # of the thresholds of a request's steps

    def arrival(self, name: str = "r", prompt: Sequence[int] = (), **fields: Any) -> RequestArrived:
        ids = np.array(prompt or self.prompt, dtype=np.int32)
        request = Request(request_id=name, block_length=self.block, **{**self.fields, **fields})
        is_aligned = self.runners[0].config.is_aligned
        length = self.output + (-(len(ids) + self.output) % self.block if is_aligned else 0)
        offset = len(ids) % self.block if is_aligned else 0
        own = RequestArrived(request, ids, length, 1e6, ARRIVAL_S, block_offset=offset)
        return msgspec.structs.replace(own, edit_threshold=self.edit_threshold)

    def cell(
        self,
        instances: int = 1,
        *,
        lookahead: int = 1,
        moves: MigrationPolicy = MigrationPolicy.NEVER,
        has_pages: bool = False,
    ) -> ServedCell:
        prefixes = PrefixSize(self.page_tokens, PAGES) if has_pages and self.page_tokens else NO_PREFIXES
        own = self.runners[:instances], ROOM, self.threshold, moves, lookahead, prefixes, self.canvas_steps, self.mode
        return ServedCell(*own, spread=self.spread)

    def served(self, **fields: Any) -> ServedCell:
        """A cell that has served this request alone."""
        cell = self.cell(lookahead=0)
        cell.serve([self.arrival(**fields)])
        return cell


def sampled(config: Mapping[str, Any], mode: CacheMode, block: int, _: pytest.TempPathFactory) -> Kind:
    decoder, page = random_decoder(config=config), block * (mode is CacheMode.BLOCK)
    runners = [Runner(decoder, 0 if mode is CacheMode.NONE else ROOM + PAGES * page) for _ in range(2)]
    fields = {"temperature": 0.9, "seed": 7}
    prompt = [17, 40, 11, 33, 25, 12]
    own = Kind(runners=runners, mode=mode, threshold=0.3, prompt=prompt, output=3 * block, block=block, fields=fields)
    return replace(own, page_tokens=page)


def pinned(positions: Sequence[int] = PINNED) -> Int32:
    tokens = np.full(32, FREE, dtype=np.int32)
    tokens[list(positions)] = 10 + np.array(positions)
    return tokens


def infilled(family: str, mode: CacheMode, _: pytest.TempPathFactory) -> Kind:
    decoder = load(COPY / family / "seed1", torch.float32, "cpu")
    runners = [Runner(decoder, 0 if mode is CacheMode.NONE else ROOM) for _ in range(2)]
    fields = {"pinned": pack_int32(pinned()), "output_tokens": 32}
    prompt = [17, 40, 11, 33, 25, 12]
    return Kind(runners=runners, mode=mode, threshold=0.9, prompt=prompt, output=32, block=8, fields=fields)


def edited(_: pytest.TempPathFactory) -> Kind:
    case = threshold_cases(("llada2/seed1",), ("block-edit",), COPY)[0]
    decoder, page = load(COPY / "llada2/seed1", torch.float32, "cpu"), case.block_length
    return Kind(
        runners=[Runner(decoder, ROOM + PAGES * page) for _ in range(2)], mode=CacheMode.BLOCK,
        threshold=case.threshold, prompt=case.prompt, output=len(case.output), block=page, fields={}, page_tokens=page,
        edit_threshold=present(case.edit_threshold),
    )  # fmt: skip


def canvases(directories: pytest.TempPathFactory) -> Kind:
    model = write_canvas_model(directories.mktemp("model"), rules={"max_denoising_steps": CANVAS_STEPS})
    return Kind(
        runners=[open_canvas_model(model, ROOM + PAGES * CANVAS) for _ in range(2)], mode=CacheMode.BLOCK,
        threshold=0.75, prompt=[(7 * i) % 90 + 3 for i in range(21)], output=2 * CANVAS, block=CANVAS,
        fields={"seed": 0}, page_tokens=CANVAS, canvas_steps=CANVAS_STEPS, spread=0.4,
    )  # fmt: skip


KINDS: dict[str, Callable[[pytest.TempPathFactory], Kind]] = {
    **{f"sampled-{mode.value}": partial(sampled, LLADA, mode, 8) for mode in CacheMode if mode is not CacheMode.BLOCK},
    "sampled-block": partial(sampled, SDAR, CacheMode.BLOCK, 8),
    "sub-blocks": partial(sampled, FAST_DLLM, CacheMode.BLOCK, 16),
    "causal-text": partial(sampled, NEMOTRON_LABS, CacheMode.BLOCK, 8),
    **{f"llada-{mode.value}": partial(infilled, "llada", mode) for mode in CacheMode if mode is not CacheMode.BLOCK},
    "dream-dual": partial(infilled, "dream", CacheMode.DUAL),
    "edits": edited,
    "canvases": canvases,
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    return KINDS[request.param](tmp_path_factory)


@pytest.fixture(scope="module")
def alone(kind: Kind) -> list[int]:
    return kind.served().output()


@pytest.mark.parametrize(
    ("moves", "has_pages"),
    [(MigrationPolicy.NEVER, False), (MigrationPolicy.AT_ANY_STEP, True)],
    ids=["stays", "moves"],
)
def test_company_and_a_prefix_cache_change_nothing(
    kind: Kind, alone: list[int], moves: str, *, has_pages: bool
) -> None:
    cell = kind.cell(2, moves=MigrationPolicy(moves), has_pages=has_pages)
    others = [kind.arrival("a", kind.prompt[1:], seed=1), kind.arrival("b", kind.prompt[2:], seed=2, pinned=b"")]
    cell.serve([kind.arrival("first")], others, [kind.arrival()], [], [kind.arrival("last")])
    assert [cell.output(name) for name in ("first", "r", "last")] == [alone] * 3


def test_a_request_that_leaves_its_instance_before_each_step_has_the_same_text(kind: Kind, alone: list[int]) -> None:
    cell = kind.cell(2, lookahead=0)
    cell.serve_moving(kind.arrival())
    stats = present(cell.finished["r"].stats)
    assert stats.migrations > stats.steps / 2
    assert cell.output() == alone


@pytest.mark.parametrize("stream", [False, True])
def test_each_next_scheduler_continues_with_the_same_text(kind: Kind, alone: list[int], *, stream: bool) -> None:
    cell, arrived = kind.cell(), kind.arrival(stream=stream, logprobs=True)
    for cycles in count(3, step=2):
        cell.cycle([msgspec.structs.replace(arrived, checkpoint=cell.checkpoints.get("r"))])
        for _ in range(cycles):
            cell.cycle()
        if cell.finished:
            break
        cell.start_scheduler()
    assert cell.epoch > 1
    assert cell.output() == alone
    if stream:
        free = free_positions(arrived.request.pinned, len(alone)).tolist()
        assert streamed(cell.progress) == {position: alone[position] for position in free}


def test_another_seed_gives_other_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = sampled(LLADA, CacheMode.NONE, 8, tmp_path_factory)
    assert own.served().output() != own.served(seed=8).output()


def test_an_output_has_its_pinned_tokens_which_change_what_is_written_before_them(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    own = infilled("llada", CacheMode.NONE, tmp_path_factory)
    cell = own.served()
    stats = present(cell.finished["r"].stats)
    assert stats.unmasked_tokens == 32 - len(PINNED)
    assert np.array(cell.output())[PINNED].tolist() == pinned()[PINNED].tolist()
    assert cell.output()[:8] != own.served(pinned=b"").output()[:8]


def test_whole_blocks_of_pinned_tokens_take_no_step(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = infilled("llada", CacheMode.DUAL, tmp_path_factory)
    cell = own.served(pinned=pack_int32(pinned(range(1, 32))))
    assert present(cell.finished["r"].stats).steps == 1


def test_estimates_features_and_load_control_count_free_tokens_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A request with pinned tokens counts as one without them whose output has the free tokens."""
    core = scheduler_core(
        lambda estimates: DiLaServePolicy(candidates=np.array([0.9]), estimates=estimates, moves=MigrationPolicy.NEVER),
        tokens_per_step=(2.0,),
        granularity=0,
        asks_predictor=True,
    )
    tokens = pack_int32(pinned([*range(4), *range(16, 32)]))  # 4 free ones, then 8
    own = infilled("llada", CacheMode.NONE, tmp_path_factory)
    commands = core.cycle([own.arrival(pinned=tokens)], ARRIVAL_S)
    [estimate] = [command for command in commands if isinstance(command, RequestEstimates)]
    row = core.table.row_of["r"]
    assert core.table.steps_left[row].tolist() == [12 / 2]
    assert core.estimates.remaining(np.array([row]))[0].tolist() == [[6.0]]
    assert (estimate.masks_left.tolist(), estimate.blocks_left.tolist()) == ([12], [2])
    assert estimate.features[0, :5].tolist() == [12, 0, 0, 0, 0]


@pytest.fixture(scope="module")
def canvas(tmp_path_factory: pytest.TempPathFactory) -> Kind:
    return replace(canvases(tmp_path_factory), spread=0.0)


def test_a_served_canvas_is_that_of_an_engine_alone_and_is_streamed_whole(canvas: Kind) -> None:
    options = DecodeOptions(CacheMode.BLOCK, canvas.threshold, CANVAS, canvas.output)
    [expected] = decode_together([CaseRequest("r", list(canvas.prompt))], canvas.runners[0], options)
    cell = canvas.served(stream=True)
    stats = present(cell.finished["r"].stats)
    assert (stats.steps, stats.unmasked_tokens) == (2 * CANVAS_STEPS, canvas.output)
    assert stats.mean_threshold == pytest.approx(canvas.threshold)
    sent = [unpack_int32(each.tokens).tolist() for each in cell.progress if each.positions]
    assert [len(tokens) for tokens in sent] == [CANVAS, CANVAS]
    assert [token for tokens in sent for token in tokens] == cell.output() == expected.output_ids


def test_the_steps_left_are_bounded_by_those_of_the_canvases(canvas: Kind) -> None:
    cell = canvas.cell(lookahead=0)
    cell.cycle([canvas.arrival()])
    for done in range(2 * CANVAS_STEPS):
        rows = np.array([cell.core.table.row_of["r"]])
        [left], _ = cell.core.estimates.remaining(rows)
        assert 1 <= left[0] <= 2 * CANVAS_STEPS - done
        cell.cycle()
    assert cell.finished


@pytest.mark.parametrize("written", [1, CANVAS - 1])
def test_a_part_of_a_canvas_is_refused(canvas: Kind, written: int) -> None:
    cell = canvas.cell(lookahead=0)
    cell.cycle([canvas.arrival()])
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
    assert (cell.core.table.masks_left[row], cell.core.table.attempts[row]) == (canvas.output, 1)
