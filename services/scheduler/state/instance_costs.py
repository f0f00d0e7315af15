"""The cost of iterations on every instance, as parallel arrays: the answers of `IterationCost` for many rows at once.

Costs are the profiles'. `correction` is the observed share of them, for the caller to multiply by.
"""

from typing import Annotated

import numpy as np

from services.scheduler.state.columns import Columns
from shared.arrays import Bool, Float64, Int32, Int64
from shared.iteration_cost import Curve, IterationCost, SharedLaunch
from shared.messages.instances import Instance
from shared.messages.steps import CACHE, RECOMPUTE, StepKind
from shared.profile import LatencyProfile

BUCKET = 32  # tokens between two points of a latency curve; latencies between the points are interpolated
KINDS = len(StepKind)
POINTS = 513  # of a curve, up to 16,384 tokens; above, a latency is proportional to the tokens
MAX_GRID_TOKENS = BUCKET * (POINTS - 1)
GRID_TOKENS = BUCKET * np.arange(POINTS)
SHARED_POINTS = 8  # of each axis of the shared launch
CACHE_RANGE_TOKENS = (256, 1024)  # the linear coefficients are those between these batch tokens
RECOMPUTE_RANGE_TOKENS = (1024, 4096)
MIN_BASE_SHARE = 0.2  # of the latency of one bucket, the least intercept
MIN_SLOPE_S = 1e-9
CORRECTION_RATE = 0.02  # weight of one observation in `correction`
MAX_OBSERVED_RATIO = 3.0  # times `correction`: one stalled iteration moves it by no more

Instances = Int32 | Int64 | slice  # indices
Amounts = Int32 | Int64 | Float64  # of tokens or keys


class InstanceCosts(Columns):
    """Latency curves and coefficients by the index of the instance. An instance without a profile takes 1 s for each
    iteration."""

    # By bucket of tokens; first the latency of each step kind, then its part that does not depend on the keys
    latency_s: Annotated[Float64, 2 * KINDS, POINTS]
    _rise_s: Annotated[Float64, 2 * KINDS, POINTS]  # from each point to the next; 0 from the last
    key_s: Annotated[Float64, KINDS]  # seconds per key attended
    covered_keys: Float64  # for each token fed by a cache step: the keys that its cost without further keys covers
    cache_slope_s: Float64  # of a request's block of 32 tokens
    cache_base_s: Float64  # of the iteration
    recompute_slope_s: Float64  # of a token
    recompute_base_s: Float64  # of the iteration
    shared_launch_s: Float64  # typical saving of an iteration of both kinds
    correction: Float64  # observed / predicted time of an iteration
    observed: Int64  # iterations that `correction` counts
    _shares: Bool  # whether it saves anything
    _shared_axes_s: Annotated[Float64, KINDS, SHARED_POINTS]  # by kind; see `SharedLaunch`
    _shared_s: Annotated[Float64, SHARED_POINTS, SHARED_POINTS]

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._flatten()

    def double(self) -> None:
        super().double()
        self._flatten()

    def learn_costs(self, index: int, instance: Instance) -> None:
        """Fill the columns of an instance from its profile."""
        cost = _cost(instance)
        for kind, curve in ((RECOMPUTE, cost.recompute), (CACHE, cost.cache)):
            self.latency_s[index, kind] = curve.seconds(GRID_TOKENS)
            self.latency_s[index, KINDS + kind] = curve.keyless_seconds(GRID_TOKENS)
            self.key_s[index, kind] = curve.key_s
        base_s, keyless_s = cost.cache.seconds(CACHE_RANGE_TOKENS[0]), cost.cache.keyless_seconds(CACHE_RANGE_TOKENS[0])
        key_s = cost.cache.key_s
        self.covered_keys[index] = float(base_s - keyless_s) / key_s / CACHE_RANGE_TOKENS[0] if key_s else np.inf
        self._rise_s[index, :, :-1] = np.diff(self.latency_s[index])
        slope_s, self.cache_base_s[index] = _line(cost.cache, CACHE_RANGE_TOKENS)
        self.cache_slope_s[index] = BUCKET * slope_s
        self.recompute_slope_s[index], self.recompute_base_s[index] = _line(cost.recompute, RECOMPUTE_RANGE_TOKENS)
        self.shared_launch_s[index] = cost.shared_launch.typical_s
        self._shared_axes_s[index], self._shared_s[index] = _shared_grid(cost.shared_launch)
        self._shares[index] = cost.shared_launch.saving_s.any()
        self.correction[index] = 1.0
        self.observed[index] = 0

    def recompute_latency_s(self, instances: Instances, tokens: Amounts) -> Float64:
        """Latency of a recompute step with these batch tokens on each instance. Shapes: [n], [n] -> [n]."""
        return self._latency(instances, RECOMPUTE, tokens)

    def cache_latency_s(self, instances: Instances, tokens: Amounts) -> Float64:
        """Latency of a cache step with these batch tokens on each instance. Shapes: [n], [n] -> [n]."""
        return self._latency(instances, CACHE, tokens)

    def iteration_seconds(
        self,
        instances: Int32 | Int64,
        *,
        cache_tokens: Amounts,
        recompute_tokens: Amounts,
        cache_keys: Amounts | None = None,
    ) -> Float64:
        """Seconds of an iteration on each instance, as `IterationCost.seconds`, before `correction`. Shapes: [n]."""
        cache_s = self._part_seconds(instances, CACHE, cache_tokens, cache_keys)
        recompute_s = self._part_seconds(instances, RECOMPUTE, recompute_tokens, None)
        total_s: Float64 = recompute_s + cache_s
        both = ((cache_s > 0) & (recompute_s > 0)).nonzero()[0]
        if len(both):
            parts_s = cache_s[both], recompute_s[both]
            merged_s = total_s[both] - self._shared_seconds(instances[both], *parts_s)
            total_s[both] = np.maximum(merged_s, np.maximum(*parts_s))
        return total_s

    def observe(self, instances: Int32 | Int64, observed_s: Float64, predicted_s: Float64) -> None:
        """Correct the costs by iterations that ended; times that are not above 0 do not count.

        Shapes: [n] each; an instance may occur more than once. `predicted_s` is from `iteration_seconds`.
        """
        known = (observed_s > 0) & (predicted_s > 0)
        of = instances[known]
        ratio = np.minimum(observed_s[known] / predicted_s[known], MAX_OBSERVED_RATIO * self.correction[of])
        np.add.at(self.observed, of, 1)
        error = ratio - self.correction[of]
        mean_rate = 1.0 / self.observed[of]  # at first the mean of all; the first long ones may be stalls
        rate = np.where(error < 0, mean_rate, np.minimum(mean_rate, CORRECTION_RATE * self.observed[of]))
        np.add.at(self.correction, of, np.maximum(rate, CORRECTION_RATE) * error)

    def _part_seconds(self, instances: Int32 | Int64, kind: int, tokens: Amounts, keys: Amounts | None) -> Float64:
        latency_s = self._latency(instances, kind, tokens)
        if keys is not None and (key_s := self.key_s[instances, kind]).any():
            latency_s = np.maximum(latency_s, self._latency(instances, KINDS + kind, tokens) + key_s * keys)
        return np.where(tokens > 0, latency_s, 0.0)

    def _shared_seconds(self, instances: Int32 | Int64, cache_s: Float64, recompute_s: Float64) -> Float64:
        """As `SharedLaunch.seconds`."""
        if not self._shares[instances].any():
            return np.zeros(len(instances))
        row, next_row, down = self._between(instances, CACHE, cache_s)
        column, next_column, right = self._between(instances, RECOMPUTE, recompute_s)
        upper = self._shared_s[instances, row, column] * (1 - right)
        upper += self._shared_s[instances, row, next_column] * right
        lower = self._shared_s[instances, next_row, column] * (1 - right)
        lower += self._shared_s[instances, next_row, next_column] * right
        saving_s: Float64 = upper * (1 - down) + lower * down
        return saving_s

    def _between(self, instances: Int32 | Int64, kind: int, values: Float64) -> tuple[Int64, Int64, Float64]:
        """The points of the shared launch around each value, and its share of the way between them."""
        axes = self._shared_axes_s[instances, kind]
        low = np.maximum((axes <= values[:, None]).sum(axis=1) - 1, 0)
        high = np.minimum(low + 1, SHARED_POINTS - 1)
        each = np.arange(len(values))
        width = np.where(high > low, axes[each, high] - axes[each, low], np.inf)
        return low, high, np.clip((values - axes[each, low]) / width, 0.0, 1.0)

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
        num_curves = self.latency_s.shape[1]
        first = np.arange(len(self.latency_s)) * (num_curves * POINTS)
        self._curve_at = [first + curve * POINTS for curve in range(num_curves)]
        self._flat_latency_s, self._flat_rise_s = self.latency_s.reshape(-1), self._rise_s.reshape(-1)


def _cost(instance: Instance) -> IterationCost:
    """Without a profile every iteration takes 1 s, so that such instances are equal."""
    if instance.profile:
        return LatencyProfile.from_csv(instance.profile).cost(instance.tp_degree)
    constant = Curve.fit([(MAX_GRID_TOKENS, 0, 1.0)])
    return IterationCost(constant, constant, SharedLaunch.constant(1.0))


def _line(curve: Curve, tokens: tuple[int, int]) -> tuple[float, float]:
    """Slope per token and intercept of a curve between two numbers of tokens, both above 0."""
    first_s, last_s = curve.seconds(tokens).tolist()
    slope_s = max((last_s - first_s) / (tokens[1] - tokens[0]), MIN_SLOPE_S)
    least_s = MIN_BASE_SHARE * float(curve.seconds(BUCKET))
    return slope_s, max(first_s - slope_s * tokens[0], least_s)


def _shared_grid(shared: SharedLaunch) -> tuple[Float64, Float64]:
    """The axes of a shared launch by kind, padded with infinity, and its points; evenly chosen ones if too many."""
    axes_s = np.full((KINDS, SHARED_POINTS), np.inf)
    chosen = []
    for kind, axis_s in ((CACHE, shared.cache_s), (RECOMPUTE, shared.recompute_s)):
        keep = np.linspace(0, len(axis_s) - 1, min(len(axis_s), SHARED_POINTS)).astype(np.int64)
        axes_s[kind, : len(keep)] = axis_s[keep]
        chosen.append(np.pad(keep, (0, SHARED_POINTS - len(keep)), mode="edge"))
    return axes_s, shared.saving_s[np.ix_(*chosen)]
