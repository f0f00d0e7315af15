"""The seconds of an iteration, from the measured latencies of one TP degree.

An iteration of one kind of step costs the lookup of its kind. An iteration of both kinds is one forward: it costs the
two lookups less the time that they share, as measured or as given. More keys than measured cost extra.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shared.arrays import Float64, Int64
from shared.messages.steps import StepKind

IterationPart = tuple[StepKind, float, float]  # kind of step, tokens fed, keys attended (0: as measured)


@dataclass(frozen=True, slots=True)
class Curve:
    """Latencies of one TP degree and kind of step. Shapes: [n], tokens ascending."""

    batch_tokens: Float64
    latency_s: Float64  # at the fewest keys measured
    keyless_s: Float64  # the part of it that does not depend on the keys
    key_s: float  # seconds per key attended; 0 if only one number of keys was measured

    @classmethod
    def fit(cls, points: Sequence[tuple[int, int, float]]) -> "Curve":
        """Fit points (tokens, keys, seconds), sorted; 0 keys: not known.

        The seconds per key are the least squares slope over the points of equal tokens.
        """
        fewest: dict[int, tuple[int, float]] = {}
        for tokens, keys, latency_s in points:
            fewest.setdefault(tokens, (keys, latency_s))
        # A copy, as `interp` is faster on contiguous arrays.
        at, latency = np.array([(n, s) for n, (_, s) in fewest.items()], dtype=np.float64).T.copy()
        keys_at = np.array([keys for keys, _ in fewest.values()], dtype=np.float64)
        more = [(keys - fewest[n][0], s - fewest[n][1]) for n, keys, s in points if fewest[n][0]]
        more_keys, more_s = np.array(more, dtype=np.float64).reshape(-1, 2).T
        squares = float(more_keys @ more_keys)
        key_s = max(float(more_keys @ more_s) / squares, 0.0) if squares else 0.0
        if not key_s:
            return cls(at, latency, latency, 0.0)
        # Ascending, so that more tokens never cost less.
        keyless: Float64 = np.maximum.accumulate(np.maximum(latency - key_s * keys_at, 0.0))
        return cls(at, latency, keyless, key_s)

    def seconds(self, batch_tokens: ArrayLike, keys: ArrayLike = 0.0) -> Float64:
        """Latency of a step: interpolated, constant below the measured tokens, proportional to the tokens above them.

        Shapes: any -> the same.
        """
        latency_s = self._lookup(self.latency_s, batch_tokens)
        if not self.key_s:
            return latency_s
        deep: Float64 = np.maximum(latency_s, self.keyless_seconds(batch_tokens) + self.key_s * np.asarray(keys))
        return deep

    def keyless_seconds(self, batch_tokens: ArrayLike) -> Float64:
        """The part of the latency that does not depend on the keys. Shapes: any -> the same."""
        return self._lookup(self.keyless_s, batch_tokens)

    def _lookup(self, points_s: Float64, batch_tokens: ArrayLike) -> Float64:
        tokens: Float64 = np.asarray(batch_tokens, dtype=np.float64)
        latency_s: Float64 = np.interp(tokens, self.batch_tokens, points_s)
        scaled: Float64 = latency_s * np.maximum(tokens / self.batch_tokens[-1], 1.0)
        return scaled


@dataclass(frozen=True, slots=True)
class SharedLaunch:
    """The seconds that an iteration of both kinds saves over two iterations, by the seconds of its two parts.

    Between the points the saving is bilinear, beyond them constant. Since the axes are seconds, the cost of the
    iteration then rises with both parts wherever it does between the points.
    """

    cache_s: Float64  # [a], ascending
    recompute_s: Float64  # [b], ascending
    saving_s: Float64  # [a, b]

    @classmethod
    def constant(cls, saving_s: float) -> "SharedLaunch":
        return cls(np.zeros(1), np.zeros(1), np.full((1, 1), saving_s))

    @classmethod
    def fit(cls, cache_s: Float64, recompute_s: Float64, measured_s: Float64) -> "SharedLaunch":
        """Fit measured iterations, so that the cost never falls with a part. Shapes: [n] each, n > 0.

        A combination that was not measured saves as much as the nearest measured one, within the costs of those with
        less and with more in both parts.
        """
        rows, row_of = np.unique(cache_s, return_inverse=True)
        columns, column_of = np.unique(recompute_s, return_inverse=True)
        sums_s = rows[:, None] + columns
        count, total_s = np.zeros_like(sums_s), np.zeros_like(sums_s)
        np.add.at(count, (row_of, column_of), 1)
        np.add.at(total_s, (row_of, column_of), measured_s)
        cost_s = total_s / np.maximum(count, 1)
        known = np.argwhere(count)
        for row, column in np.argwhere(count == 0):
            distance = np.abs(np.log(rows[known[:, 0]] / rows[row]))
            distance += np.abs(np.log(columns[known[:, 1]] / columns[column]))
            near = tuple(known[distance.argmin()])
            less = cost_s[: row + 1, : column + 1][count[: row + 1, : column + 1] > 0].max(initial=0.0)
            more = cost_s[row:, column:][count[row:, column:] > 0].min(initial=np.inf)
            cost_s[row, column] = np.clip(sums_s[row, column] - (sums_s[near] - cost_s[near]), less, more)
        cost_s = np.maximum(cost_s, np.maximum(rows[:, None], columns))
        cost_s = np.maximum.accumulate(np.maximum.accumulate(cost_s, axis=0), axis=1)
        return cls(rows, columns, sums_s - cost_s)

    @property
    def typical_s(self) -> float:
        """The median saving of the points, at least 0."""
        return max(float(np.median(self.saving_s)), 0.0)

    def seconds(self, cache_s: Float64, recompute_s: Float64) -> Float64:
        """The saving. Shapes: any, equal -> the same."""
        if self.saving_s.size == 1:
            return np.full_like(cache_s, self.saving_s[0, 0])
        row, next_row, down = _between(self.cache_s, cache_s)
        column, next_column, right = _between(self.recompute_s, recompute_s)
        upper = self.saving_s[row, column] * (1 - right) + self.saving_s[row, next_column] * right
        lower = self.saving_s[next_row, column] * (1 - right) + self.saving_s[next_row, next_column] * right
        saving_s: Float64 = upper * (1 - down) + lower * down
        return saving_s


@dataclass(frozen=True, slots=True)
class IterationCost:
    """The seconds of an iteration of one TP degree, from `LatencyProfile.cost`."""

    recompute: Curve
    cache: Curve
    shared_launch: SharedLaunch

    def seconds(
        self,
        *,
        cache_tokens: ArrayLike = 0,
        recompute_tokens: ArrayLike = 0,
        cache_keys: ArrayLike = 0,
        recompute_keys: ArrayLike = 0,
    ) -> Float64:
        """Seconds of an iteration with these tokens fed in steps of each kind, which attend to these keys in all.

        With 0 keys, or fewer than measured, the keys cost as measured. Shapes: any that broadcast -> theirs.
        """
        cache_s = np.where(np.asarray(cache_tokens) > 0, self.cache.seconds(cache_tokens, cache_keys), 0.0)
        recompute_s = np.where(
            np.asarray(recompute_tokens) > 0, self.recompute.seconds(recompute_tokens, recompute_keys), 0.0
        )
        both = (cache_s > 0) & (recompute_s > 0)
        if not both.any():
            return np.asarray(recompute_s + cache_s)
        merged_s = recompute_s + cache_s - self.shared_launch.seconds(cache_s, recompute_s)
        larger_s = np.maximum(cache_s, recompute_s)
        return np.where(both, np.maximum(merged_s, larger_s), larger_s)

    def iteration_seconds(self, parts: Iterable[IterationPart]) -> float:
        """Seconds of an iteration with these parts, in any order."""
        tokens, keys = dict.fromkeys(StepKind, 0.0), dict.fromkeys(StepKind, 0.0)
        for kind, fed, attended in parts:
            tokens[kind] += fed
            keys[kind] += attended
        seconds = self.seconds(
            cache_tokens=tokens[StepKind.CACHE],
            recompute_tokens=tokens[StepKind.RECOMPUTE],
            cache_keys=keys[StepKind.CACHE],
            recompute_keys=keys[StepKind.RECOMPUTE],
        )
        return float(seconds)


def _between(axis: Float64, values: Float64) -> tuple[Int64, Int64, Float64]:
    """The points around each value, and its share of the way between them; beyond the axis the nearest point."""
    low = np.clip(np.searchsorted(axis, values, side="right") - 1, 0, len(axis) - 1)
    high = np.minimum(low + 1, len(axis) - 1)
    width = np.where(high > low, axis[high] - axis[low], np.inf)
    return low, high, np.clip((values - axis[low]) / width, 0.0, 1.0)
