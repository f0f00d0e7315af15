"""Reads a canvas from its logits: for each token a draw, the most probable one, the entropy, and the mean embedding.

Source: DiffusionGemma's decoding in transformers. Random numbers are those of `sampling`.
Shape letters: R tokens of canvases, V columns of a part of the vocabulary, W width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from services.worker.model.sampling import CHUNK_ELEMENTS, Noise, Vocabulary, gumbel, mix, unit_interval

RANDOM_TOKEN = -1  # in place of a token in the random number that draws one


def random_tokens(seed: int, step: int, positions: Tensor, vocab_size: int) -> Tensor:
    """The random tokens that a step of a canvas reads, any of the vocabulary. Shapes: positions int64 [n] -> [n]."""
    row = mix(mix(mix(torch.tensor(seed)) + step) + positions)
    return (unit_interval(mix(row + mix(torch.tensor(RANDOM_TOKEN)))) * vocab_size).long()


def read_canvas(
    logits: Tensor, noise: Noise, vocabulary: Vocabulary, embedding_of: Callable[[Tensor], Tensor], canvas: int
) -> tuple[Tensor, Tensor]:
    """Read a part of the vocabulary, in chunks of which the size depends on the number of tokens of a `canvas` alone.

    Shapes: logits [R, V] -> float64 [6, R]: the draw's score and id, the highest logit at the temperature and its id,
    the logsumexp, and the mean logit; and the mean embedding [R, W], as if the part was the whole vocabulary.
    """
    size = max(1, min(canvas, CHUNK_ELEMENTS // logits.shape[1]))
    starts = [first + at for first in range(0, len(logits), canvas) for at in range(0, canvas, size)]
    chunks = [slice(start, min(start + size, start - start % canvas + canvas)) for start in starts]
    parts, embeddings = zip(
        *(_read_rows(logits, noise, vocabulary, embedding_of, chunk) for chunk in chunks), strict=True
    )
    return torch.cat(parts, dim=1), torch.cat(embeddings)


def _read_rows(
    logits: Tensor, noise: Noise, vocabulary: Vocabulary, embedding_of: Callable[[Tensor], Tensor], chunk: slice
) -> tuple[Tensor, Tensor]:
    own = noise.of_rows(chunk)
    values = logits[chunk] / own.temperature.float().unsqueeze(1)  # [rows, V]
    tokens = torch.arange(values.shape[1], dtype=torch.int64, device=values.device) + vocabulary.first
    score, drawn = (values + gumbel(own, tokens)).max(dim=-1)
    best, column = values.max(dim=-1)
    values -= best.unsqueeze(1)
    terms = values.exp()
    sums = terms.sum(dim=-1, keepdim=True)
    terms /= sums
    mean = best.double() + (terms * values).sum(dim=-1).double()
    total = best.double() + sums.squeeze(1).double().log()
    ids = ((index + vocabulary.first).double() for index in (drawn, column))
    return torch.stack((score, next(ids), best.double(), next(ids), total, mean)), embedding_of(terms)


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
