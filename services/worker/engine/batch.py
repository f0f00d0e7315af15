"""One forward as plain arrays: what is fed, who attends to what, and which rows need the head.

Packed: the fed tokens of all requests stand one after another. Shape letters: T fed tokens, N requests,
R rows for the head (candidates: the masked positions of the current blocks).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.worker.engine.sequence_state import SequenceState
from services.worker.model.config import ModelConfig
from shared.arrays import Float64, Int64

NONE: Int64 = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The input of one forward: recompute parts first, equal lengths next to each other."""

    tokens: Int64  # [T]
    positions: Int64  # [T], each counted from its own request's start
    lengths: Int64  # [N], tokens fed of each request; their sum is T
    key_lengths: Int64  # [N], tokens attended to by each
    num_recompute: int  # the first so many requests attend to what they feed, the others to cached slots
    write_entries: Int64  # [T], where the keys and values of what is fed are cached; [0] without a cache
    read_entries: Int64  # [sum of key_lengths of the others], whose keys they attend to
    counts: Int64  # [N], candidates of each request, at least 1
    candidates: Int64  # [R], positions of the candidates, each counted from its own request's start
    rows: Int64  # [R], the fed token whose logits predict each candidate
    temperatures: Float64  # [N]
    seeds: Int64  # [N]
    steps: Int64  # [N]


@dataclass(frozen=True, slots=True)
class Part:
    """One request's part of a forward: feed canvas [start, stop), decide masks of `block`."""

    sequence: SequenceState
    step: int
    block: int
    start: int
    stop: int
    first_only: bool = False  # decide the block's first position alone

    @property
    def recomputes(self) -> bool:
        return self.stop - self.start == len(self.sequence.canvas)

    @property
    def order(self) -> tuple[bool, int, int]:
        """Parts in this order make a batch."""
        return not self.recomputes, self.stop - self.start, len(self.sequence.canvas)


def pack(parts: Sequence[Part], config: ModelConfig) -> ForwardBatch:
    """Every part has at least one candidate; parts are sorted by their `order`."""
    lengths = np.array([part.stop - part.start for part in parts], dtype=np.int64)
    starts = np.array([part.start for part in parts], dtype=np.int64)
    offsets = np.cumsum(lengths) - lengths - starts  # fed row of a request's position 0, were it fed
    candidates = [_candidates(part, config.mask_token_id) for part in parts]
    counts = np.array([len(masks) for masks in candidates], dtype=np.int64)
    flat = np.concatenate(candidates)
    predicted_by = np.maximum(flat - 1, 0) if config.shifted_logits else flat
    num_recompute = sum(part.recomputes for part in parts)
    return ForwardBatch(
        tokens=np.concatenate([part.sequence.canvas[part.start : part.stop] for part in parts]).astype(np.int64),
        positions=np.arange(lengths.sum()) - np.repeat(offsets, lengths),
        lengths=lengths,
        key_lengths=np.array([len(part.sequence.canvas) for part in parts], dtype=np.int64),
        num_recompute=num_recompute,
        write_entries=np.concatenate([part.sequence.kv_entries[part.start : part.stop] for part in parts]),
        read_entries=np.concatenate([NONE, *(part.sequence.kv_entries for part in parts[num_recompute:])]),
        counts=counts,
        candidates=flat,
        rows=predicted_by + np.repeat(offsets, counts),
        temperatures=np.array([part.sequence.temperature for part in parts], dtype=np.float64),
        seeds=np.array([part.sequence.seed for part in parts], dtype=np.int64),
        steps=np.array([part.step for part in parts], dtype=np.int64),
    )


def _candidates(part: Part, mask_token_id: int) -> Int64:
    start, stop = part.sequence.block_range(part.block)
    masks = start + np.flatnonzero(part.sequence.canvas[start:stop] == mask_token_id)
    return masks[:1] if part.first_only else masks
