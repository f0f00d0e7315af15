"""Measures the latency profile: seconds of one step by tokens of the batch, for recompute and for cache steps.

It times the engine's iterations, so a latency includes all that the scheduler sees: packing, forward, head, unmasking.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from services.worker.cache.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.step_jobs import StepJob
from services.worker.model.model_runner import ModelRunner
from shared.arrays import pack_int32
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults
from shared.profile import LatencyProfile

TYPICAL_TOKENS = 256  # prompt and output tokens of each request in a batch
BLOCK = 32  # tokens of a block

Row = tuple[int, int, StepKind, float]  # tp, batch tokens, kind, seconds


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """The batch sizes to measure, in tokens, and the repeats of each."""

    batch_tokens: tuple[int, ...]
    repeats: int = 5
    budget_s: float = float("inf")  # no more repeats once the steps of one size have taken this long together
    max_step_s: float = float("inf")  # no larger batches once a step takes longer; the profile extrapolates by tokens


# For a start without a profile.
QUICK_PLAN = ProfilePlan(batch_tokens=(32, 128, 512, 2048), repeats=3, budget_s=0.2, max_step_s=1.0)


def batch_sizes(max_tokens: int) -> tuple[int, ...]:
    """Powers of two from 32 on, and `max_tokens` last."""
    sizes = [BLOCK]
    while sizes[-1] * 2 < max_tokens:
        sizes.append(sizes[-1] * 2)
    return (*sizes, max_tokens) if max_tokens > sizes[-1] else tuple(sizes)


def cache_tokens_for(plan: ProfilePlan) -> int:
    """The cache size, in tokens, for measuring the plan's cache steps."""
    return max(plan.batch_tokens) // BLOCK * TYPICAL_TOKENS


def measure(
    runner: ModelRunner, tp: int, plan: ProfilePlan, on_point: Callable[[StepKind, int], object] = lambda *_: None
) -> LatencyProfile:
    """Measure the profile of one TP degree; without a cache it has no cache rows.

    `on_point` is called before each measurement, with the kind of step and the batch's tokens.
    """
    kinds = [StepKind.RECOMPUTE, StepKind.CACHE] if runner.cache_tokens else [StepKind.RECOMPUTE]
    return LatencyProfile.from_rows(row for kind in kinds for row in _measure_kind(runner, tp, plan, kind, on_point))


def _measure_kind(
    runner: ModelRunner, tp: int, plan: ProfilePlan, kind: StepKind, on_point: Callable[[StepKind, int], object]
) -> Iterator[Row]:
    for tokens in plan.batch_tokens:
        on_point(kind, tokens)
        states = _states(runner, tokens, kind)
        timed = None if states is None else _time_steps(runner, states, kind, plan)
        if timed is None:
            return
        latency_s, fed = timed
        yield tp, fed, kind, latency_s
        if latency_s > plan.max_step_s:
            return


def _time_steps(
    runner: ModelRunner, states: list[RequestState], kind: StepKind, plan: ProfilePlan
) -> tuple[float, int] | None:
    """Time steps of these requests as one batch.

    Returns: the median seconds of a step, and the tokens that it computes; None if it exceeds the device's memory.
    """
    mode = CacheMode.DUAL if kind is StepKind.CACHE else CacheMode.NONE
    engine = Engine(runner, mode, EngineLimits(max(plan.batch_tokens), len(states)), "profile")
    first = [StepKind.RECOMPUTE, kind] if kind is StepKind.CACHE else [kind]  # fills the cache and warms up
    times_s: list[float] = []
    fed = 0
    for step, each in enumerate(first + [kind] * plan.repeats):
        ran = _run_step(engine, states, step, each)
        if any(results.failures for results in ran) or (each is kind and len(ran) > 1):
            return None
        fed = ran[-1].batch_tokens
        if step >= len(first):
            times_s.append(ran[-1].latency_s)
            if sum(times_s) >= plan.budget_s:
                break
    return statistics.median(times_s), fed


def _run_step(engine: Engine, states: list[RequestState], step: int, kind: StepKind) -> list[StepResults]:
    """Run a step of each request. Returns: the results of each iteration; several if the step exceeds a batch."""
    message = StepJobs(epoch=0, states=states if step == 0 else [])
    # The threshold 1 unmasks one token per step, so masks are always left.
    engine.accept(message, [StepJob(state.ticket, step, 0, 1.0, kind) for state in states])
    return list(iter(engine.iterate, None))


def _states(runner: ModelRunner, tokens: int, kind: StepKind) -> list[RequestState] | None:
    """Requests whose steps of this kind compute `tokens` in all; None if the cache has no room for them."""
    config = runner.config
    longest = min(TYPICAL_TOKENS, config.max_length)
    if kind is StepKind.CACHE:
        count, length, block = tokens // BLOCK, longest, BLOCK
        if count * length > runner.cache_tokens:
            return None
    else:
        count = -(-tokens // longest)
        length = tokens // count
        block = min(BLOCK, length // 2)
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, config.vocab_size, (count, length - block))
    prompts[prompts == config.mask_token_id] = (config.mask_token_id + 1) % config.vocab_size
    return [
        RequestState(
            ticket=ticket,
            request_id=f"profile-{ticket}",
            prompt_length=length - block,
            block_length=block,
            canvas=pack_int32([*prompt, *[config.mask_token_id] * block]),
        )
        for ticket, prompt in enumerate(prompts)
    ]
