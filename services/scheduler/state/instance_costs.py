"""The cost of iterations on every instance, as parallel arrays: the answers of `IterationCost` for many rows at once.

Costs are as the profiles predict. `correction`, by which callers multiply them, is observed over predicted time.
"""

from typing import Annotated

import numpy as np

from services.scheduler.state.columns import Columns
from shared.arrays import Float64, Int32, Int64
from shared.iteration_cost import Curve, IterationCost, in_one_iteration
from shared.messages.instances import Instance
from shared.messages.steps import CACHE, RECOMPUTE, StepKind
from shared.profile import LatencyProfile

BUCKET = 32  # tokens between two points of a latency curve; latencies between the points are interpolated
CACHE_KEYLESS = len(StepKind)  # a curve after those of the kinds: the part of a cache step without its keys
NUM_CURVES = CACHE_KEYLESS + 1
POINTS = 513  # of a curve
MAX_GRID_TOKENS = BUCKET * (POINTS - 1)  # above, a latency is proportional to the tokens
GRID_TOKENS = BUCKET * np.arange(POINTS)
BASE_RANGE_TOKENS = (1024, 4096)  # the line through the latencies at these two gives the base, where it has 0 tokens
MIN_BASE_SHARE = 0.2  # the least base, as a share of the latency of one bucket
CORRECTION_RATE = 0.02  # least weight of one observation in `correction`
MAX_OBSERVED_RATIO = 3.0  # times `correction`: a longer iteration, as of a stall, counts as this

Instances = Int32 | Int64 | slice  # indices
Amounts = Int32 | Int64 | Float64  # of tokens or keys


class InstanceCosts(Columns):
    """Latency curves and constants of each instance, and the correction that its iterations show."""

    latency_s: Annotated[Float64, NUM_CURVES, POINTS]  # by curve and bucket of tokens
    _rise_s: Annotated[Float64, NUM_CURVES, POINTS]  # from each point to the next; 0 from the last
    key_s: Float64  # of a cache step: seconds per key attended
    recompute_base_s: Float64  # of a recompute iteration: the part that does not depend on its tokens
    shared_launch_s: Float64  # that one iteration of both kinds saves over two iterations
    correction: Float64  # running average of observed / predicted time of an iteration
    observed: Int64  # iterations that `correction` counts

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._flatten()

    def double(self) -> None:
        super().double()
        self._flatten()

    def set_costs(self, index: int, instance: Instance) -> None:
        """Fill the columns of an instance from its profile."""
        cost = _cost(instance)
        self.latency_s[index, RECOMPUTE] = cost.recompute.seconds(GRID_TOKENS)
        self.latency_s[index, CACHE] = cost.cache.seconds(GRID_TOKENS)
        self.latency_s[index, CACHE_KEYLESS] = cost.cache.keyless_seconds(GRID_TOKENS)
        self._rise_s[index, :, :-1] = np.diff(self.latency_s[index])
        self.key_s[index] = cost.cache.key_s
        self.recompute_base_s[index] = _base_seconds(cost.recompute)
        self.shared_launch_s[index] = cost.shared_launch_s
        self.correction[index] = 1.0
        self.observed[index] = 0

    def recompute_latency_s(self, instances: Instances, tokens: Amounts) -> Float64:
        """Latency of a recompute step with these batch tokens on each instance. Shapes: [n], [n] -> [n]."""
        return self._latency(instances, RECOMPUTE, tokens)

    def cache_latency_s(self, instances: Instances, tokens: Amounts, keys: Amounts | None = None) -> Float64:
        """Latency of a cache step with these batch tokens and keys on each instance. Shapes: [n] each -> [n]."""
        latency_s = self._latency(instances, CACHE, tokens)
        if keys is None or not (key_s := self.key_s[instances]).any():
            return latency_s
        return np.maximum(latency_s, self._latency(instances, CACHE_KEYLESS, tokens) + key_s * keys)

    def iteration_seconds(
        self, instances: Instances, *, cache_tokens: Amounts, recompute_tokens: Amounts, cache_keys: Amounts
    ) -> Float64:
        """Seconds of an iteration on each instance, as `IterationCost.seconds` without `recompute_keys`; uncorrected.
        Shapes: any that broadcast -> theirs."""
        cache_s = self.cache_latency_s(instances, cache_tokens, cache_keys) * (cache_tokens > 0)
        recompute_s = self.recompute_latency_s(instances, recompute_tokens) * (recompute_tokens > 0)
        return in_one_iteration(cache_s, recompute_s, self.shared_launch_s[instances])

    def observe(self, instances: Int32 | Int64, observed_s: Float64, predicted_s: Float64) -> None:
        """Correct the costs by iterations that ended; times that are not above 0 do not count.

        Shapes: [n] each, of different instances. `predicted_s` is from `iteration_seconds`.
        """
        known = (observed_s > 0) & (predicted_s > 0)
        updated = instances[known]
        ratio = np.minimum(observed_s[known] / predicted_s[known], MAX_OBSERVED_RATIO * self.correction[updated])
        self.observed[updated] += 1
        error = ratio - self.correction[updated]
        mean_rate = 1.0 / self.observed[updated]  # at first the mean of all; the first long ones may be stalls
        rate = np.where(error < 0, mean_rate, np.minimum(mean_rate, CORRECTION_RATE * self.observed[updated]))
        self.correction[updated] += np.maximum(rate, CORRECTION_RATE) * error

    def _latency(self, instances: Instances, curve: int, tokens: Amounts) -> Float64:
        at: Float64 = tokens / BUCKET
        if np.count_nonzero(at > POINTS - 1):
            last_s = self._latency(instances, curve, np.minimum(tokens, MAX_GRID_TOKENS))
            return last_s * np.maximum(at / (POINTS - 1), 1.0)
        low = at.astype(np.int64)
        point = self._curve_at[curve][instances] + low
        latency_s: Float64 = self._flat_latency_s[point] + (at - low) * self._flat_rise_s[point]
        return latency_s

    def _flatten(self) -> None:
        """Make flat views of the curves, in which one index selects a point."""
        first = np.arange(len(self.latency_s)) * (NUM_CURVES * POINTS)
        self._curve_at = [first + curve * POINTS for curve in range(NUM_CURVES)]
        self._flat_latency_s, self._flat_rise_s = self.latency_s.reshape(-1), self._rise_s.reshape(-1)


def _cost(instance: Instance) -> IterationCost:
    """Without a profile, iterations of up to MAX_GRID_TOKENS take 1 s, so that such instances are equal."""
    if instance.profile:
        return LatencyProfile.from_csv(instance.profile).cost(instance.tp_degree)
    constant = Curve.fit([(MAX_GRID_TOKENS, 0, 1.0)])
    return IterationCost(constant, constant, 1.0)


def _base_seconds(curve: Curve) -> float:
    """The intercept of a curve's line between BASE_RANGE_TOKENS, at least MIN_BASE_SHARE of the latency of a bucket."""
    few, many = BASE_RANGE_TOKENS
    few_s, many_s = map(float, curve.seconds(BASE_RANGE_TOKENS))
    return max(few_s - few * (many_s - few_s) / (many - few), MIN_BASE_SHARE * float(curve.seconds(BUCKET)))
