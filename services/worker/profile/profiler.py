"""Measures the latency profile: seconds of one iteration by tokens of the batch, for recompute and for cache steps, for
both together, and for cache steps over longer sequences.

It times the engine's iterations, so a latency includes all that the scheduler sees: packing, forward, head, unmasking.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.engine import Engine, EngineLimits
from services.worker.engine.step_jobs import StepJob
from services.worker.model.families import ModelConfig
from services.worker.model.model_runner import ModelRunner
from shared.arrays import pack_int32
from shared.messages.steps import RequestState, StepJobs, StepKind, StepResults
from shared.profile import MIXED, LatencyProfile, MeasuredLatency, RowKind

TYPICAL_TOKENS = 256  # prompt and output tokens of each request in a batch
LONG_TOKENS = 1024  # of each request in a batch with long contexts
BLOCK = 32  # tokens of a block
PAUSE_S = 0.01  # before an iteration, about as long as an instance waits for its next jobs; meanwhile caches cool

OnPoint = Callable[[RowKind, int], object]  # kind of row, tokens of the batch


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """The batch sizes to measure, in tokens, and the repeats of each."""

    batch_tokens: tuple[int, ...]
    repeats: int = 5
    budget_s: float = float("inf")  # no more repeats once the steps of one size have taken this long together
    max_step_s: float = float("inf")  # no larger batches once a step takes longer; the profile extrapolates by tokens
    long_tokens: tuple[int, ...] = ()  # batch sizes of cache steps with long contexts
    mixed_tokens: tuple[tuple[int, int], ...] = ()  # of mixed iterations: tokens of cache and of recompute steps

    @property
    def num_points(self) -> int:
        """The largest number of points that it measures."""
        return 2 * len(self.batch_tokens) + len(self.long_tokens) + len(self.mixed_tokens)


# For a start without a profile.
QUICK_PLAN = ProfilePlan(
    batch_tokens=(32, 128, 512, 2048),
    repeats=3,
    budget_s=0.2,
    max_step_s=1.0,
    long_tokens=(128,),
    mixed_tokens=((128, 256), (512, 512)),
)


def full_plan(max_tokens: int, repeats: int) -> ProfilePlan:
    """The plan of `dilaserve profile`: batches of up to `max_tokens`."""
    sizes = batch_sizes(max_tokens)
    some = sizes[::3]
    pairs = product(some, [tokens for tokens in some if tokens >= TYPICAL_TOKENS])
    return ProfilePlan(sizes, repeats, long_tokens=some, mixed_tokens=tuple(p for p in pairs if sum(p) <= max_tokens))


def batch_sizes(max_tokens: int) -> tuple[int, ...]:
    """Powers of two from 32 on, and `max_tokens` last."""
    sizes = [BLOCK]
    while sizes[-1] * 2 < max_tokens:
        sizes.append(sizes[-1] * 2)
    return (*sizes, max_tokens) if max_tokens > sizes[-1] else tuple(sizes)


def cache_tokens_for(plan: ProfilePlan) -> int:
    """The cache size, in tokens, for measuring the plan's cache steps."""
    return max(plan.batch_tokens) // BLOCK * TYPICAL_TOKENS


def measure(runner: ModelRunner, tp: int, plan: ProfilePlan, on_point: OnPoint = lambda *_: None) -> LatencyProfile:
    """Measure the profile of one TP degree; without a cache it has rows of recompute steps only.

    `on_point` is called before each measurement.
    """
    recompute = list(_measure_recompute(runner, tp, plan, on_point))
    if not runner.cache_tokens:
        return LatencyProfile.from_rows(recompute)
    typical = _CachedRequests(runner, plan, _typical_tokens(runner.config))
    cache = list(_measure_cache(typical, tp, plan, plan.batch_tokens, on_point))
    largest = (
        max((row.batch_tokens for row in cache), default=0),
        max((row.batch_tokens for row in recompute), default=0),
    )
    rows = [*recompute, *cache, *_measure_mixed(typical, tp, plan, largest, on_point)]
    if runner.config.max_length > typical.length:
        sizes = [tokens for tokens in plan.long_tokens if tokens <= largest[0]]  # as shorter ones
        rows += _measure_cache(_CachedRequests(runner, plan, LONG_TOKENS), tp, plan, sizes, on_point)
    return LatencyProfile.from_rows(rows)


def _typical_tokens(config: ModelConfig) -> int:
    return max(TYPICAL_TOKENS, 2 * config.block_length) if config.canvas else TYPICAL_TOKENS


def _measure_recompute(runner: ModelRunner, tp: int, plan: ProfilePlan, on_point: OnPoint) -> Iterator[MeasuredLatency]:
    canvas = runner.config.block_length if runner.config.canvas else 0
    for tokens in plan.batch_tokens:
        if tokens < 2 * canvas:
            continue
        on_point(StepKind.RECOMPUTE, tokens)
        count = -(-tokens // min(_typical_tokens(runner.config), runner.config.max_length))
        states = _states(runner.config, range(count), tokens // count)
        # With a cache if it has room, since the steps that are served fill it.
        mode = CacheMode.DUAL if count * (tokens // count) <= runner.cache_tokens else CacheMode.NONE
        if canvas and mode is CacheMode.NONE:
            return
        engine = Engine(runner, mode, EngineLimits(max(plan.batch_tokens), count), "profile")
        _run_step(engine, states, [])
        timed = _time(plan, partial(_recompute, engine, states))
        if timed is None:
            return
        latency_s, fed = timed
        yield MeasuredLatency(tp, fed, StepKind.RECOMPUTE, latency_s, fed)
        if latency_s > plan.max_step_s:
            return


def _recompute(engine: Engine, states: list[RequestState], step: int) -> list[StepResults]:
    return _run_step(engine, [], _jobs(states, step))


def _measure_cache(
    requests: "_CachedRequests", tp: int, plan: ProfilePlan, sizes: Sequence[int], on_point: OnPoint
) -> Iterator[MeasuredLatency]:
    for tokens in sizes:
        on_point(StepKind.CACHE, tokens)
        count = tokens // requests.block
        if not count:
            continue
        timed = requests.time(count)
        if timed is None:
            return
        latency_s, fed = timed
        yield MeasuredLatency(tp, fed, StepKind.CACHE, latency_s, count * requests.length)
        if latency_s > plan.max_step_s:
            return


def _measure_mixed(
    requests: "_CachedRequests", tp: int, plan: ProfilePlan, largest: tuple[int, int], on_point: OnPoint
) -> Iterator[MeasuredLatency]:
    """Iterations of both kinds; none of parts that were not measured alone."""
    for cached, recomputed in plan.mixed_tokens:
        if cached <= largest[0] and recomputed <= largest[1]:
            on_point(MIXED, cached + recomputed)
            counts = cached // requests.block, recomputed // requests.length
            if all(counts) and (timed := requests.time(*counts)) is not None:
                latency_s, fed = timed
                context = sum(counts) * requests.length
                yield MeasuredLatency(tp, fed, MIXED, latency_s, context, counts[1] * requests.length)


class _CachedRequests:
    """Requests of one length whose keys and values are cached, opened as they are needed."""

    def __init__(self, runner: ModelRunner, plan: ProfilePlan, length: int) -> None:
        self.length = min(length, runner.config.max_length)
        self.block = runner.config.block_length if runner.config.canvas else BLOCK  # a canvas has the checkpoint's
        self._max_steps = runner.config.canvas.max_steps if runner.config.canvas else BLOCK
        self._runner = runner
        self._plan = plan
        self._forget()

    def _forget(self) -> None:
        limits = EngineLimits(max(self._plan.batch_tokens), self._runner.cache_tokens // self.length)
        self._engine = Engine(self._runner, CacheMode.DUAL, limits, "profile")
        self._states: list[RequestState] = []
        self._step = 0

    def time(self, cached: int, recomputed: int = 0) -> tuple[float, int] | None:
        """As `_time`, with `cached` requests that take cache steps and `recomputed` others that recompute."""
        if self._step + 2 + self._plan.repeats >= self._max_steps:  # at the latest then, the block ends
            self._forget()
        if (cached + recomputed) * self.length > self._runner.cache_tokens or not self._open(cached + recomputed):
            return None
        kinds = [StepKind.CACHE] * cached + [StepKind.RECOMPUTE] * recomputed

        def run(_: int) -> list[StepResults]:
            self._step += 1
            return _run_step(self._engine, [], _jobs(self._states, self._step, kinds))

        return _time(self._plan, run)

    def _open(self, count: int) -> bool:
        """Open requests until there are `count`. Returns: whether their steps could run."""
        missing = range(len(self._states), count)
        if not missing:
            return True
        opened = _states(self._runner.config, missing, self.length)
        self._states += opened
        self._step += 1
        ran = _run_step(self._engine, opened, _jobs(opened, self._step))
        return not any(results.failures for results in ran)


def _time(plan: ProfilePlan, run: Callable[[int], list[StepResults]]) -> tuple[float, int] | None:
    """Time runs, after one to warm up; `run` takes their number and returns the results of each iteration.

    Returns: the median seconds of an iteration, and the tokens that it computes; None if a run exceeds one iteration or
    the device's memory.
    """
    times_s: list[float] = []
    fed = 0
    for number in range(1 + plan.repeats):
        time.sleep(PAUSE_S)
        ran = run(number)
        if len(ran) > 1 or any(results.failures for results in ran):
            return None
        fed = ran[-1].batch_tokens
        if number:
            times_s.append(ran[-1].latency_s)
            if sum(times_s) >= plan.budget_s:
                break
    return statistics.median(times_s), fed


def _jobs(states: list[RequestState], step: int, kinds: Sequence[StepKind] = ()) -> list[StepJob]:
    """A step of each of the first requests, as many as there are kinds; by default a recompute step of all."""
    # The threshold 1 unmasks one token per step, so masks are always left.
    each = kinds or [StepKind.RECOMPUTE] * len(states)
    return [StepJob(state.ticket, step, 0, 1.0, kind) for state, kind in zip(states, each, strict=False)]


def _run_step(engine: Engine, states: list[RequestState], jobs: list[StepJob]) -> list[StepResults]:
    """Open requests and run jobs. Returns: the results of each iteration; several if the jobs exceed a batch."""
    engine.accept(StepJobs(epoch=0, states=states), jobs)
    return list(iter(engine.iterate, None))


def _states(config: ModelConfig, tickets: range, length: int) -> list[RequestState]:
    block = config.block_length if config.canvas else min(BLOCK, length // 2)
    if config.is_aligned:
        length -= length % block  # it takes whole blocks only
    rng = np.random.default_rng(tickets.start)
    prompts = rng.integers(0, config.vocab_size, (len(tickets), length - block))
    prompts[prompts == config.mask_token_id] = (config.mask_token_id + 1) % config.vocab_size
    return [
        RequestState(
            ticket=ticket,
            request_id=f"profile-{ticket}",
            prompt_length=length - block,
            block_length=block,
            canvas=pack_int32([*prompt, *[config.mask_token_id] * block]),
        )
        for ticket, prompt in zip(tickets, prompts, strict=True)
    ]
