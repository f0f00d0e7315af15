"""Requests that need no model: each is easy or hard, which its confidences show."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from services.predictor.training import save_predictor, train
from services.predictor.trajectories import Trajectory

THRESHOLDS = (0.5, 0.7, 0.9)
BLOCK_LENGTH = 32


def random_trajectory(seed: int, prefix: Sequence[float], threshold: float, blocks: int = 2) -> Trajectory:
    """Under the thresholds `prefix` first and `threshold` from then on; the same seed is the same request."""
    rng = np.random.default_rng(seed)
    centre = rng.uniform(0.2, 0.8)
    thresholds: list[float] = []
    unmasked: list[int] = []
    stats: list[tuple[float, ...]] = []
    for _ in range(blocks):
        masks = BLOCK_LENGTH
        while masks:
            confidences = np.clip(rng.normal(centre, 0.2, size=masks), 0, 1)
            gamma = prefix[len(thresholds)] if len(thresholds) < len(prefix) else threshold
            count = max(1, int((confidences > gamma).sum()))
            low, q25, median, q75 = np.quantile(confidences, [0, 0.25, 0.5, 0.75])
            thresholds.append(gamma)
            unmasked.append(count)
            stats.append((low, q25, median, confidences.mean(), q75))
            masks -= count
    return Trajectory(
        block_length=BLOCK_LENGTH,
        thresholds=np.array(thresholds),
        unmasked=np.array(unmasked, dtype=np.int32),
        confidence_stats=np.array(stats, dtype=np.float32),
    )


def fixed_trajectories(seeds: range) -> list[Trajectory]:
    """Each request under every threshold."""
    return [random_trajectory(seed, (), threshold) for seed in seeds for threshold in THRESHOLDS]


def write_predictor(directory: Path, requests: int = 30) -> Path:
    """Train a predictor on random requests and write its directory."""
    held_out = fixed_trajectories(range(1000, 1005))
    save_predictor(directory, train(fixed_trajectories(range(requests)), held_out, held_out, THRESHOLDS))
    return directory
