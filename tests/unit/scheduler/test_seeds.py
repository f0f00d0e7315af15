"""The scheduler and real engines: a seed gives the same tokens in any company, on any instance, with any free cache."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from services.scheduler.events import RequestArrived
from services.worker.engine.cache_mode import CacheMode
from services.worker.model.decoder import PackedDecoder
from services.worker.model.model_runner import Runner
from shared.messages.requests import Request
from tests.builders import ARRIVAL_S
from tests.support.random_model import LLADA, SDAR, random_decoder
from tests.support.served_cell import ServedCell

THRESHOLD = 0.3
BLOCK, BLOCKS = 8, 3
PROMPT = 6
LENGTH = PROMPT + BLOCK * BLOCKS
ROOM = 8 * LENGTH


@cache
def decoder(mode: CacheMode) -> PackedDecoder:
    return random_decoder(config=SDAR if mode is CacheMode.BLOCK else LLADA)


def sampled(name: str, seed: int, mode: CacheMode, prompt: int = PROMPT) -> RequestArrived:
    """The prompt depends on the name's first letter alone. Of mode block, the first block begins with its end."""
    ids = np.random.default_rng(ord(name[0])).integers(10, 50, prompt).astype(np.int32)
    request = Request(request_id=name, block_length=BLOCK, temperature=0.9, seed=seed)
    offset = prompt % BLOCK if mode is CacheMode.BLOCK else 0
    return RequestArrived(request, ids, BLOCK * BLOCKS - offset, 1e6, ARRIVAL_S, block_offset=offset)


def serve(
    waves: Sequence[Sequence[RequestArrived]], *, instances: int, mode: CacheMode, lookahead: int, room: int = ROOM
) -> dict[str, list[int]]:
    """The output of each request; a wave arrives at each cycle."""
    runners = [Runner(decoder(mode), 0 if mode is CacheMode.NONE else room) for _ in range(instances)]
    cell = ServedCell(runners, room, THRESHOLD, lookahead=lookahead, mode=mode)
    cell.serve(*waves)
    return {name: cell.output(name) for name in cell.finished}


@pytest.mark.parametrize("mode", CacheMode)
def test_a_seed_gives_the_same_tokens_in_any_company(mode: CacheMode) -> None:
    own = sampled("r", 7, mode)
    alone = serve([[own]], instances=1, mode=mode, lookahead=0)["r"]
    assert alone == serve([[own]], instances=1, mode=mode, lookahead=1)["r"]
    others = [sampled(f"{letter}-other", 7 + i, mode, prompt=4 + i) for i, letter in enumerate("abcde")]
    for instances, room, lookahead in ((1, ROOM, 0), (3, ROOM, 1), (1, 2 * LENGTH, 1)):
        waves = [others[:3], [], [own], [], others[3:]]
        assert serve(waves, instances=instances, mode=mode, lookahead=lookahead, room=room)["r"] == alone


def test_another_seed_gives_other_tokens() -> None:
    mode = CacheMode.NONE
    waves = [[sampled("r", 7, mode), sampled("r-again", 7, mode), sampled("r-other", 8, mode)]]
    outputs = serve(waves, instances=1, mode=mode, lookahead=0)
    assert outputs["r"] == outputs["r-again"]
    assert outputs["r"] != outputs["r-other"]
