"""One forward as plain arrays: the tokens to feed, the keys each request attends to, and the rows that need the head.

Packed: the fed tokens of all requests are concatenated. Shape letters: T fed tokens, N requests, S spans (runs of fed
tokens of one request that attend to the same keys), R rows for the head (candidates: the masked positions of the
current blocks, or where tokens may change all positions of their outputs).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.worker.cache.kv_allocator import Move
from services.worker.model.logit_changes import LogitChanges
from shared.arrays import Float64, Int64, UInt8
from shared.messages.requests import CHANGES, Sampling

NONE: Int64 = np.zeros(0, dtype=np.int64)
NO_BITS: UInt8 = np.zeros((0, 0), dtype=np.uint8)
SAMPLING = np.dtype([(name, np.float64) for name in Sampling.__struct_fields__ if name not in CHANGES])
MIN_TEMPERATURE = 1e-6  # above 0, which is greedy; logits over a lower one could be infinite
_sampling_of = attrgetter(*SAMPLING.names or ())


def sampling_table(rows: Sequence[Sampling]) -> NDArray[Any]:
    """A structured array with a column for each field, as float64, without those that change logits. Shapes: [N]."""
    table = np.array([_sampling_of(row) for row in rows], dtype=SAMPLING)
    temperatures: Float64 = table["temperature"]
    np.maximum(temperatures, MIN_TEMPERATURE, out=temperatures, where=temperatures > 0)
    return table


def slices_of(counts: Int64) -> list[slice]:
    """The rows of each of several groups that lie one behind the other. Shape: counts [N]."""
    return [slice(end - count, end) for end, count in zip(counts.cumsum().tolist(), counts.tolist(), strict=True)]


def _none() -> Int64:
    return NONE


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The input of one forward: recompute parts first, parts of equal lengths next to each other."""

    tokens: Int64  # [T]
    positions: Int64  # [T], from the start of each request's canvas
    lengths: Int64  # [S], tokens fed per span; their sum is T
    key_starts: Int64  # [S], the first cache entry of the request; without a cache, its first row of the fed tokens
    key_lengths: Int64  # [S], tokens that each span attends to, from there on
    counts: Int64  # [N], candidates of each request, at least 1
    num_recompute: int = 0  # the first requests feed all their tokens
    write_entries: Int64 = field(default_factory=_none)  # [T], cache entries for the fed tokens; [0] without a cache
    moves: Sequence[Move] = ()  # copies within the cache, made before all else
    candidates: Int64 = field(default_factory=_none)  # [R], their positions, from the start of each request's canvas
    rows: Int64 = field(default_factory=_none)  # [R], the fed token whose logits predict each candidate
    current: Int64 = field(default_factory=_none)  # [R], the tokens there now: the mask, or one that may change
    limits: Float64 = field(default_factory=lambda: np.zeros(0))  # [R], the probability that writes a token there
    sampling: NDArray[Any] = field(default_factory=lambda: sampling_table([]))  # [N]
    seeds: Int64 = field(default_factory=_none)  # [N]
    steps: Int64 = field(default_factory=_none)  # [N]
    top_logprobs: Int64 = field(default_factory=_none)  # [N], tokens whose probabilities are wanted at each candidate
    # Of requests with a pattern: their candidates, and the tokens allowed there as bits, the first token the highest
    constrained: Int64 = field(default_factory=_none)  # [A], indices of candidates
    allowed: UInt8 = field(default_factory=lambda: NO_BITS)  # [A, ceil(V / 8)]
    changes: Sequence[LogitChanges] = ()  # of the requests with penalties or a bias
    # Of models that denoise canvases, whose requests have a span each at the end, and whose steps count from its begin:
    num_text_spans: int = 0  # the spans before those, of finished text
    # Of requests with labels: the tokens of all possible labels, with the candidate of each
    scored_rows: Int64 = field(default_factory=_none)  # [Q], indices of candidates
    scored_tokens: Int64 = field(default_factory=_none)  # [Q]
