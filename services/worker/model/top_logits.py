"""The highest logits of a row, for clients that want the most probable tokens beside the chosen one."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from services.worker.model.sampling import Vocabulary, row_chunks


def top_logits(logits: Tensor, rows: Tensor, k: int, vocabulary: Vocabulary, temperature: Tensor | None) -> Tensor:
    """The k highest logits of these rows, and their token ids; the mask is not among them.

    Shapes: logits [R, V], rows int64 [A], temperature [R] -> float64 [2, A, k], descending; -inf if V is too small.
    Rows with a temperature above 0 are divided by it.
    """
    chunks = row_chunks(len(rows), logits.shape[1])
    return torch.cat([_top_of_rows(logits, rows[chunk], k, vocabulary, temperature) for chunk in chunks], dim=1)


def combine_top(top: Tensor, total: Tensor) -> Tensor:
    """The k most probable tokens over all parts of the vocabulary.

    Shapes: top [parts, 2, A, k], total [A], the logsumexp of each row -> float64 [2, A, k]: tokens, probabilities.
    """
    k = top.shape[-1]
    values, tokens = top.permute(1, 2, 0, 3).flatten(2)  # [A, parts * k] each
    best, index = values.topk(k, dim=-1)
    return torch.stack((tokens.gather(1, index), (best - total.unsqueeze(1)).exp()))


def _top_of_rows(logits: Tensor, rows: Tensor, k: int, vocabulary: Vocabulary, temperature: Tensor | None) -> Tensor:
    values = logits[rows].float()  # [A, V]
    if temperature is not None:
        scale = temperature[rows].unsqueeze(1)
        values /= torch.where(scale > 0, scale, 1.0).float()
    mask = vocabulary.mask_token_id - vocabulary.first
    if 0 <= mask < values.shape[1]:
        values[:, mask] = -torch.inf
    best, column = values.topk(min(k, values.shape[1]), dim=-1)
    missing = (0, k - best.shape[1])
    tokens = pad((column + vocabulary.first).double(), missing)
    return torch.stack((pad(best.double(), missing, value=-torch.inf), tokens))
