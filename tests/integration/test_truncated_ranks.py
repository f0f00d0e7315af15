"""Ranks that split the vocabulary draw the same truncated tokens as one rank."""

from typing import Any

import pytest

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.model.model_loading import CacheSize, ModelChoice, open_runner
from shared.arrays import pack_int32
from tests.support.golden import COPY
from tests.support.steps import Decode, decode_together

LABELS = {"choices": [pack_int32([5, 6]), pack_int32([90])], "end_ids": pack_int32([1])}
CHANGES = {"presence_penalty": 1.0, "repetition_penalty": 1.5, "logit_bias": {5: 2.0, 90: -3.0}}
LIMITS: list[dict[str, Any]] = [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {}, {"top_logprobs": 2}, LABELS, CHANGES]


def outputs(tp: int) -> list[list[int]]:
    choice = ModelChoice(str(COPY / "llada/seed1"), dtype="float32", tp=tp, threads=1)
    with open_runner(choice, CacheSize(4, 256)) as runner:
        mask = runner.config.mask_token_id
        decodes = [Decode(i, [7, 8, 9], 16, 16, 0.3, mask, 1.0, seed=3) for i in range(len(LIMITS))]
        engine = Engine(runner, CacheMode.NONE, EngineLimits(1024, 8), "test-1")
        decode_together(engine, decodes, dict(enumerate(LIMITS)))
        return [each.output.tolist() for each in decodes]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_ranks_draw_the_truncated_tokens_of_one() -> None:
    alone = outputs(tp=1)
    assert alone[0] != alone[3]
    assert outputs(tp=2) == alone
