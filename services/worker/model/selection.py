"""Selects the candidates whose predicted tokens a step writes, on the device.

Candidates are those of all requests of a batch, grouped by request. Shape letters: R candidates, N requests.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Candidates:
    """Shapes: [R] each."""

    request: Tensor  # int64, the index of its request
    current: Tensor  # int64, its token on the canvas: the mask, or one that may change
    limits: Tensor  # float64, the probability that writes another token there


def select(
    tokens: Tensor, confidences: Tensor, candidates: Candidates, requests: int, mask_token_id: int, *, is_strict: bool
) -> Tensor:
    """Select every candidate at or above its limit whose token is not the current one, and always the most confident
    mask of each request that has masks.

    Source: the threshold rule of Fast-dLLM; with `is_strict` that of SDAR and LLaDA2, above the limit only. A limit of
    its own for each token that may change is LLaDA2.1's decoding with two thresholds. Among equal confidences, the
    first candidate counts as the most confident; one that is not a number counts as the least.
    Shapes: tokens and confidences [R] -> bool [R].
    """
    reached = confidences > candidates.limits if is_strict else confidences >= candidates.limits
    is_masked = candidates.current == mask_token_id
    score = confidences.nan_to_num(-1.0).masked_fill(~is_masked, -2.0)
    best = score.new_full((requests,), -2.0).scatter_reduce_(0, candidates.request, score, "amax")
    is_best = is_masked & (score == best[candidates.request])
    end = len(score)
    places = torch.arange(end, device=score.device).masked_fill(~is_best, end)
    first = places.new_full((requests,), end).scatter_reduce_(0, candidates.request, places, "amin")
    selected = torch.zeros(end + 1, dtype=torch.bool, device=score.device)
    selected[:end] = reached & (tokens != candidates.current)
    return selected.index_fill_(0, first, True)[:end]
