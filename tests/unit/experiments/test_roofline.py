"""The operations and bytes of a step with LLaDA-8B's dimensions."""

import pytest

from experiments.gpu_check.roofline import LLADA_8B, Ceilings, roofline_s, work
from shared.messages.steps import StepKind

WEIGHTS = 7_497_318_400  # parameters of LLaDA-8B's matrices, without the embedding
H100 = Ceilings(flops_per_s=740e12, bytes_per_s=2.6e12)


def test_a_small_step_takes_the_time_to_read_the_weights() -> None:
    assert work(LLADA_8B, 32, StepKind.CACHE)[1] == pytest.approx(2 * WEIGHTS, rel=0.02)
    assert roofline_s(LLADA_8B, 32, StepKind.CACHE, H100) == pytest.approx(2 * WEIGHTS / 2.6e12, rel=0.02)


def test_only_masked_positions_use_the_head_and_the_end_of_the_last_layer() -> None:
    operations, _ = work(LLADA_8B, 4096, StepKind.RECOMPUTE)
    assert 0.85 < operations / (2 * WEIGHTS * 4096) < 0.97
