"""The seconds of an iteration, from the measured latencies of one TP degree.

An iteration of one kind of step costs the lookup of its kind. An iteration of both kinds is one forward: it costs the
two lookups less a constant, the shared launch. More keys than measured cost extra.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shared.arrays import Float64


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
        return np.maximum(latency_s, self.keyless_seconds(batch_tokens) + self.key_s * np.asarray(keys))

    def keyless_seconds(self, batch_tokens: ArrayLike) -> Float64:
        """The part of the latency that does not depend on the keys. Shapes: any -> the same."""
        return self._lookup(self.keyless_s, batch_tokens)

    def _lookup(self, points_s: Float64, batch_tokens: ArrayLike) -> Float64:
        tokens: Float64 = np.asarray(batch_tokens, dtype=np.float64)
        latency_s: Float64 = np.interp(tokens, self.batch_tokens, points_s)
        scaled: Float64 = latency_s * np.maximum(tokens / self.batch_tokens[-1], 1.0)
        return scaled


@dataclass(frozen=True, slots=True)
class IterationCost:
    """The seconds of an iteration of one TP degree, from `LatencyProfile.cost`."""

    recompute: Curve
    cache: Curve
    shared_launch_s: float  # that one iteration of both kinds saves over two iterations; at least 0

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
        return in_one_iteration(cache_s, recompute_s, self.shared_launch_s)


def in_one_iteration(cache_s: Float64, recompute_s: Float64, shared_launch_s: float | Float64) -> Float64:
    """Seconds of an iteration by those of its two parts, of which one may be 0: never below the longer one.
    Shapes: any that broadcast -> theirs."""
    return np.maximum(cache_s + recompute_s - shared_launch_s, np.maximum(cache_s, recompute_s))
