"""Recorded requests, step by step, and the training examples that follow from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.predictor.model import FEATURES, model_rows
from services.predictor.queries import Query
from shared.arrays import Float32, Float64, Int32, Int64
from shared.predictor_features import state_features


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One request from its first step to its last; s counts its S steps.

    If the threshold changes, only the states after the last change show how many steps that threshold takes. To learn
    one state under every threshold, run the request once for each, with the same steps up to that state.
    """

    block_length: int  # tokens
    thresholds: Float64  # [S], of each step
    unmasked: Int32  # [S], tokens per step; at least 1, or all of a block in its last step
    confidence_stats: Float32  # [S, 5], reported by each step
    block_offset: int = 0  # tokens of the prompt that belong to the first block

    @property
    def num_steps(self) -> int:
        return len(self.thresholds)

    @property
    def output_length(self) -> int:
        return int(self.unmasked.sum())

    @property
    def settled_at(self) -> int:
        """The first state after the last change of the threshold; state s is the one before step s."""
        changes = np.flatnonzero(self.thresholds[1:] != self.thresholds[:-1])
        return int(changes[-1]) + 1 if len(changes) else 0

    def masks_left(self) -> Int64:
        """Before each step, [S]."""
        return self.output_length - np.cumsum(self.unmasked, dtype=np.int64) + self.unmasked

    def states(self) -> Query:
        """The states before each step, [S]."""
        masks_left = self.masks_left().astype(np.int32)
        done = self.block_offset + self.output_length - masks_left
        block = done // self.block_length
        known_stats = np.concatenate([np.zeros((1, 5), dtype=np.float32), self.confidence_stats[:-1]])
        features = state_features(
            output_length=np.full(self.num_steps, self.output_length, dtype=np.int32),
            block_length=np.full(self.num_steps, self.block_length, dtype=np.int32),
            steps=np.arange(self.num_steps, dtype=np.int32),
            masks_left=masks_left,
            block=block,
            block_masks_left=self.block_length * (block + 1) - done,
            confidence_stats=known_stats,
        )
        blocks_left = (self.block_offset + self.output_length) // self.block_length - block
        return Query(features, self.thresholds[-1:].astype(np.float32), masks_left, blocks_left)


@dataclass(frozen=True, slots=True)
class Examples:
    """Training examples: m states, each under one threshold."""

    rows: Float32  # [m, 11], columns FEATURES
    masks_left: Int32  # [m]
    steps_left: Int32  # [m]


def examples(trajectories: Sequence[Trajectory]) -> Examples:
    """The states of each trajectory after the last change of its threshold, with the steps left."""
    rows, masks_left, steps_left = [np.empty((0, len(FEATURES)), dtype=np.float32)], [], []
    for trajectory in trajectories:
        kept = slice(trajectory.settled_at, None)
        states = trajectory.states()
        rows.append(model_rows(states.features, states.thresholds)[kept])
        masks_left.append(states.masks_left[kept])
        steps_left.append(np.arange(trajectory.num_steps, 0, -1, dtype=np.int32)[kept])
    return Examples(np.concatenate(rows), np.concatenate(masks_left), np.concatenate(steps_left))


def tokens_per_step(trajectories: Sequence[Trajectory], thresholds: Sequence[float]) -> list[float]:
    """The mean at each threshold over trajectories with only this threshold, for the one-shot estimate.

    Raises: ValueError if a threshold has none.
    """
    means = []
    for threshold in thresholds:
        own = [t for t in trajectories if t.settled_at == 0 and t.thresholds[0] == threshold]
        if not own:
            raise ValueError(f"no trajectory at threshold {threshold} throughout")
        means.append(sum(t.output_length for t in own) / sum(t.num_steps for t in own))
    return means
