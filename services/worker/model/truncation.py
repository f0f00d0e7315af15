"""Truncates the distributions that tokens are drawn from: `top_p`, `top_k` and `min_p`."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.model.sampling import row_chunks
from shared.arrays import Bool


@dataclass(frozen=True, slots=True)
class Truncation:
    """The truncated rows and their limits, named as in Sampling. Shapes: all [F]."""

    rows: Tensor  # int64, of the logits
    temperature: Tensor  # float64, above 0
    top_p: Tensor  # float64 in [0, 1]; 1: no effect
    top_k: Tensor  # float64; 0 or less: no effect
    min_p: Tensor  # float64 in [0, 1]; 0: no effect


LIMITS = [field.name for field in fields(Truncation)][1:]


def is_truncated(sampling: NDArray[Any]) -> Bool:
    """Whether the distribution of each row is truncated. `sampling`: of `sampling_table`. Shapes: [N] -> [N]."""
    truncates = (sampling["top_p"] < 1) | (sampling["top_k"] > 0) | (sampling["min_p"] > 0)
    is_drawn: Bool = sampling["temperature"] > 0
    return is_drawn & truncates


def lowest_logits(logits: Tensor, truncation: Truncation, mask_token_id: int) -> Tensor:
    """The lowest logit that each row may draw.

    Source: vLLM's order, on softmax(logits / T) without the mask. `min_p` keeps the tokens of at least this share of
    the highest probability, `top_k` the k most probable ones of them, and `top_p` the fewest of these, the most
    probable first, that have at least this share of their total. At least one token remains, and all of equal logits.

    Shapes: logits [R, V], over the whole vocabulary -> float64 [R]; -inf in the rows that are not truncated.
    """
    lowest = torch.full((len(logits),), -torch.inf, dtype=torch.float64, device=logits.device)
    for chunk in row_chunks(len(truncation.rows), logits.shape[1]):
        lowest[truncation.rows[chunk]] = _lowest_of_rows(logits, truncation, chunk, mask_token_id)
    return lowest


def _lowest_of_rows(logits: Tensor, truncation: Truncation, chunk: slice, mask_token_id: int) -> Tensor:
    values = logits[truncation.rows[chunk]]  # a copy, [F, V]
    values[:, mask_token_id] = -torch.inf
    ordered = values.sort(dim=-1, descending=True).values.double()
    shares = (ordered / truncation.temperature[chunk].unsqueeze(1)).softmax(dim=-1)
    top_k = truncation.top_k[chunk].unsqueeze(1)
    rank = torch.arange(shares.shape[1], device=shares.device)
    shares *= (shares >= truncation.min_p[chunk].unsqueeze(1) * shares[:, :1]) & ((top_k <= 0) | (rank < top_k))
    total = shares.cumsum(dim=-1)
    is_kept = (total - shares < truncation.top_p[chunk].unsqueeze(1) * total[:, -1:]) & (shares > 0)
    last = is_kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1  # those kept come first
    return ordered.gather(1, last).squeeze(1)
