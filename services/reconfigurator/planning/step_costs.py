"""The costs of steps in stage 1, from the cost of an iteration that the scheduler and the simulator use too.

A step takes the time of its batch. A batch of recompute steps that shares an iteration with one of cache steps adds
less to the time of its instance than it takes alone; where two iterations are the cheaper, they stay separate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.arrays import Float64
from shared.iteration_cost import IterationCost
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile


@dataclass(frozen=True, slots=True)
class Steps:
    tokens: Float64  # [K] tokens computed by a step of class k
    L: Float64  # [D, B] latency of a step by TP degree and batch size, seconds
    busy: Float64  # [D, B] seconds that a batch adds to the time of its instance: at most L


class StepMix:
    """The workload's steps if they are as few as the lowest threshold allows. Shapes: [K]."""

    def __init__(
        self,
        prompt: Float64,
        output: Float64,
        rps: Float64,
        max_tokens_per_step: float,
        block_length: int,
        exact_cache: bool,
    ) -> None:
        self.prompt, self.output, self._rps = prompt, output, rps
        self._steps, blocks = output / max_tokens_per_step, output / block_length
        # The recompute steps of a request with a cache, and the tokens that each feeds: with an exact cache the prompt
        # and the first block
        self.recomputes: Float64 = np.ones(len(output)) if exact_cache else blocks
        self.recompute_tokens: Float64 = prompt + (np.minimum(block_length, output) if exact_cache else output)
        # The tokens that a cache step feeds: its block, and with an exact cache once per block the one before it
        self.cache_tokens: Float64 = np.full(len(output), float(block_length))
        if exact_cache:
            self.cache_tokens *= 1.0 + np.maximum(blocks - 1.0, 0.0) / np.maximum(self._steps, blocks)
        # The keys that a cache step attends to, per token of its block: the mean over the cache steps. With an exact
        # cache these are the keys to the end of its block
        weight, keys = rps * output, prompt + ((output + block_length) / 2 if exact_cache else output)
        self.keys_per_cached_token = float(weight @ keys / (weight.sum() * block_length))

    def shared_share(self, recompute_batches: Float64, cache_batch: float) -> Float64:
        """The share of recompute batches that find a batch of cache steps to share an iteration with. Shapes: [B]."""
        cache_steps = np.maximum(self._steps - self.recomputes, 0.0)
        cache_tokens = self._rps @ (cache_steps * self.cache_tokens)
        recompute_tokens = self._rps @ (self.recomputes * self.recompute_tokens)
        share: Float64 = (cache_tokens / cache_batch) / (recompute_tokens / recompute_batches)
        return np.clip(share, 0.0, 1.0)


def step_costs(
    profile: LatencyProfile, degrees: Sequence[int], batches: Float64, mix: StepMix, *, cached: bool
) -> dict[StepKind, Steps]:
    """The costs of each kind of step. Raises: BadInput if the profile lacks a needed TP degree or kind of step."""
    for degree in degrees:
        profile.require(degree, cached=cached)
    costs = [profile.cost(degree) for degree in degrees]
    alone_s = np.array([cost.seconds(recompute_tokens=batches, recompute_keys=batches) for cost in costs])
    if not cached:
        return {StepKind.RECOMPUTE: Steps(mix.prompt + mix.output, alone_s, alone_s)}
    keys = mix.keys_per_cached_token * batches
    cache_s = np.array([cost.seconds(cache_tokens=batches, cache_keys=keys) for cost in costs])
    of_degrees = zip(costs, alone_s, cache_s, strict=True)
    busy_s = np.array([_recompute_busy_s(*of_degree, batches, mix) for of_degree in of_degrees])
    return {
        StepKind.RECOMPUTE: Steps(mix.recompute_tokens, alone_s, busy_s),
        StepKind.CACHE: Steps(mix.cache_tokens, cache_s, cache_s),
    }


def _recompute_busy_s(
    cost: IterationCost, alone_s: Float64, cache_s: Float64, batches: Float64, mix: StepMix
) -> Float64:
    """Seconds that batches of recompute steps add, beside cache batches of the most tokens per second. Shapes: [B]."""
    best = int(np.argmax(batches / cache_s))
    merged_s = cost.seconds(
        recompute_tokens=batches,
        recompute_keys=batches,
        cache_tokens=batches[best],
        cache_keys=mix.keys_per_cached_token * batches[best],
    )
    saving_s = np.maximum(alone_s + cache_s[best] - merged_s, 0.0)
    busy_s: Float64 = alone_s - saving_s * mix.shared_share(batches, batches[best])
    return busy_s
