"""The model of denoising steps against the stored profiles."""

import pytest

from experiments.latency_model import DREAM_7B, LLADA_8B, largest_difference, profile, step_ms
from experiments.paper.files import DREAM_PROFILE, DREAM_STEPS, PROFILE
from shared.messages.steps import StepKind
from shared.profile import read_profile
from simulator.steps_table import read_steps


def test_the_model_reproduces_the_profile_of_llada() -> None:
    assert largest_difference(profile(LLADA_8B), read_profile(PROFILE)) < 0.001


def test_the_profile_of_dream_is_the_models() -> None:
    assert largest_difference(profile(DREAM_7B), read_profile(DREAM_PROFILE)) < 0.001


def test_the_dimensions_give_the_published_sizes() -> None:
    assert LLADA_8B.parameters + LLADA_8B.vocabulary * LLADA_8B.width == pytest.approx(8.015e9, rel=0.001)
    assert DREAM_7B.parameters + DREAM_7B.vocabulary * DREAM_7B.width == pytest.approx(7.62e9, rel=0.01)
    assert (LLADA_8B.kv_bytes_per_token, DREAM_7B.kv_bytes_per_token) == (524_288, 57_344)


@pytest.mark.parametrize(("tp", "share"), [(2, 0.75), (4, 0.45)])
def test_tensor_parallelism_shortens_a_full_step_as_published(tp: int, share: float) -> None:
    alone, split = (step_ms(LLADA_8B, degree, 1276, StepKind.RECOMPUTE) for degree in (1, tp))
    assert split / alone == pytest.approx(share)


def test_dream_has_tokens_per_step_but_no_accuracy() -> None:
    steps = read_steps(DREAM_STEPS)
    assert steps.accuracy is None
    assert dict(zip(steps.thresholds.tolist(), steps.tokens_per_step.tolist(), strict=True))[0.9] == 1.79
