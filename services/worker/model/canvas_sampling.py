"""Reads a canvas from its logits: for each token a draw, the most probable one, the entropy, and the mean embedding.

Source: DiffusionGemma's decoding in transformers. Random numbers are those of `sampling`.
Shape letters: R tokens of canvases, V columns of a part of the vocabulary, W width.
"""

from collections.abc import Callable
from math import gcd

import torch
from torch import Tensor

from services.worker.model.sampling import Noise, Vocabulary, gumbel, mix, uniform, unit_interval

# Ids in place of a token's in the hash of a random number
RANDOM_TOKEN = -1  # of the number that chooses any token of the vocabulary
IN_GROUP = -2  # of the number that chooses a token of a group
MAX_GROUP, MAX_RANKS = 256, 16  # groups have the same tokens on any number of ranks that divides MAX_RANKS


def random_tokens(seed: int, step: int, positions: Tensor, vocab_size: int) -> Tensor:
    """The random tokens that a step of a canvas reads, any of the vocabulary. Shapes: positions int64 [n] -> [n]."""
    row = mix(mix(mix(torch.tensor(seed)) + step) + positions)
    return (unit_interval(mix(row + mix(torch.tensor(RANDOM_TOKEN)))) * vocab_size).long()


def read_canvas(
    logits: Tensor, noise: Noise, vocabulary: Vocabulary, embedding_of: Callable[[Tensor], Tensor], canvas: int
) -> tuple[Tensor, Tensor]:
    """Read this rank's columns of the logits, one canvas at a time, as its result must not depend on its batch.

    Shapes: logits [R, V], `canvas` rows of one canvas -> float64 [6, R]: score and id of the drawn token, the highest
    logit at the temperature and its id, the logsumexp, and the mean logit by probability; and the mean embedding
    [R, W], by probabilities over this rank's columns.
    """
    chunks = [slice(first, first + canvas) for first in range(0, len(logits), canvas)]
    parts, embeddings = zip(
        *(_read_rows(logits, noise, vocabulary, embedding_of, chunk) for chunk in chunks), strict=True
    )
    return torch.cat(parts, dim=1), torch.cat(embeddings)


def _read_rows(
    logits: Tensor, noise: Noise, vocabulary: Vocabulary, embedding_of: Callable[[Tensor], Tensor], chunk: slice
) -> tuple[Tensor, Tensor]:
    own = noise.of_rows(chunk)
    values = logits[chunk] / own.temperature.float().unsqueeze(1)  # [rows, V]
    best, column = values.max(dim=-1)
    values -= best.unsqueeze(1)
    terms = values.exp()
    score, drawn = _draw(terms, own, vocabulary)
    sums = terms.sum(dim=-1, keepdim=True)
    terms /= sums
    mean = best.double() + values.mul_(terms).sum(dim=-1).double()
    total = best.double() + sums.squeeze(1).double().log()
    ids = ((index + vocabulary.first).double() for index in (drawn, column))
    return torch.stack((score + best, next(ids), best.double(), next(ids), total, mean)), embedding_of(terms)


def _draw(terms: Tensor, noise: Noise, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Draw a column of each row, with a probability in proportion to `terms`.

    First a group of neighbouring columns is drawn by Gumbel numbers, then a column of it by the cumulative sum. So a
    row takes a random number for each group, not for each token. Shapes: terms [R, V] -> float64 scores [R], of which
    the highest one of all ranks wins, and columns [R].
    """
    vocabulary_size = vocabulary.mask_token_id  # the id of the mask is the first one behind the vocabulary
    size = gcd(MAX_GROUP, vocabulary_size // gcd(MAX_RANKS, vocabulary_size))
    groups = terms.view(len(terms), -1, size)  # [R, V / size, size]
    ids = torch.arange(groups.shape[1], device=terms.device) + vocabulary.first // size
    score, group = (groups.sum(dim=-1).double().log() + gumbel(noise, ids)).max(dim=-1)
    cumulative = groups[torch.arange(len(group), device=terms.device), group].double().cumsum(dim=-1)  # [R, size]
    target = uniform(noise, torch.full((1,), IN_GROUP, device=terms.device)) * cumulative[:, -1:]  # [R, 1]
    return score, group * size + (cumulative <= target).sum(dim=-1).clamp_max(size - 1)


def combine_parts(parts: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Join the parts of the vocabulary, of which each rank has read one.

    Shapes: parts [ranks, 6, R], embeddings [ranks, R, W] -> float64 [4, R]: the draw, the most probable token, its
    probability, the entropy in nats; the logsumexp [R]; the mean embedding [R, W].
    """
    score, drawn, best, token, totals, means = parts.unbind(dim=1)  # [ranks, R] each
    total = totals.logsumexp(dim=0)
    shares = (totals - total).exp()
    winner, likeliest = score.argmax(dim=0, keepdim=True), best.argmax(dim=0, keepdim=True)
    chosen = torch.stack(
        (
            drawn.gather(0, winner).squeeze(0),
            token.gather(0, likeliest).squeeze(0),
            (best.gather(0, likeliest).squeeze(0) - total).exp(),
            (total - (shares * means).sum(dim=0)).clamp_min(0.0),
        )
    )
    if len(parts) == 1:
        return chosen, total, embeddings[0]
    return chosen, total, (shares.unsqueeze(-1) * embeddings).sum(dim=0).to(embeddings.dtype)
