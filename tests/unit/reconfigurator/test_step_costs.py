"""The costs of steps in stage 1."""

import numpy as np
import pytest

from services.reconfigurator.planning.step_costs import StepMix


def mix(prompt: float, output: float, *, exact: bool = False) -> StepMix:
    each = np.array([1.0])
    return StepMix(prompt * each, output * each, each, max_tokens_per_step=4.0, block_length=32, exact_cache=exact)


@pytest.mark.parametrize("prompt", [0.0, 64.0, 4096.0])
@pytest.mark.parametrize("recompute_batch", [32.0, 1024.0, 65536.0])
def test_a_recompute_batch_shares_at_most_one_iteration(prompt: float, recompute_batch: float) -> None:
    """As many batches share as there are cache batches for them: 6 cache steps for each of 2 recompute steps."""
    of = mix(prompt, 64.0)
    cache_batches = 14 * 32 / 256
    recompute_batches = 2 * (prompt + 64) / recompute_batch
    [share] = of.shared_share(np.array([recompute_batch]), 256.0)
    assert share == pytest.approx(min(cache_batches / recompute_batches, 1.0))


@pytest.mark.parametrize(
    ("exact", "recomputes", "recompute_tokens", "cache_tokens", "keys"),
    [(False, 2.0, 164.0, 32.0, 164.0 / 32), (True, 1.0, 132.0, 32.0 * (1 + 1 / 16), (100 + 48) / 32)],
)
def test_an_exact_cache_recomputes_once_and_feeds_each_finished_block_again(
    *, exact: bool, recomputes: float, recompute_tokens: float, cache_tokens: float, keys: float
) -> None:
    of = mix(100.0, 64.0, exact=exact)
    assert of.recomputes.tolist() == [recomputes]
    assert of.recompute_tokens.tolist() == [recompute_tokens]
    assert of.cache_tokens.tolist() == [cache_tokens]
    assert of.keys_per_cached_token == pytest.approx(keys)
