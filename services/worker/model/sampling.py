"""Samples a token and its confidence from each row of logits, greedily or with a temperature.

Random numbers are counter-based: a hash of (seed, step, position, token). So a request draws the same numbers in any
batch and on any instance.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24  # logits of one chunk: a copy of 64 MiB, with a temperature of 128 MiB


@dataclass(frozen=True, slots=True)
class Noise:
    """The inputs of each row's random numbers. Shapes: all [R]. Temperature 0 means greedy."""

    temperature: Tensor  # float64
    seed: Tensor  # int64
    step: Tensor  # int64
    position: Tensor  # int64

    def of_rows(self, chunk: slice) -> "Noise":
        """That of some of the rows."""
        return Noise(self.temperature[chunk], self.seed[chunk], self.step[chunk], self.position[chunk])


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The part of the vocabulary that the logits' columns are, and the mask token, which is never chosen."""

    first: int  # token id of the first column
    mask_token_id: int


def best_of(
    logits: Tensor, noise: Noise | None, vocabulary: Vocabulary, floor: Tensor | None = None, *, after_temperature: bool
) -> Tensor:
    """Choose a token of `vocabulary` for each row: the most probable one, or with a temperature T a sample of
    softmax(logits / T), in which logits below `floor` count as -inf.

    Source: LLaDA's and Dream's published decoding, with two departures. LLaDA computes the softmax in float64, Dream in
    the logits' dtype; here the terms of a row's sum are float32, and the sum's logarithm and the noise are float64. The
    mask is never chosen, since a step might then unmask nothing.

    Shapes: logits [R, V], floor float64 [R] -> float64 [4, R]: the token's score, its logit, its id, the logsumexp of
    the row's logits.
    The confidence is the token's probability in the raw softmax (LLaDA), or with `after_temperature` in the softmax at
    the temperature (Dream), in both cases over all tokens: the floor does not change it.
    """
    parts = [
        _best_of_rows(
            logits[chunk],
            None if noise is None else noise.of_rows(chunk),
            vocabulary,
            None if floor is None else floor[chunk],
            after_temperature=after_temperature,
        )
        for chunk in row_chunks(len(logits), logits.shape[1])
    ]
    return torch.cat(parts, dim=1)


def row_chunks(rows: int, columns: int) -> list[slice]:
    """Rows of logits that are computed together."""
    size = max(1, CHUNK_ELEMENTS // columns)
    return [slice(start, start + size) for start in range(0, rows, size)]


def combine_shards(best: Tensor) -> Tensor:
    """Choose among the tokens of all parts of the vocabulary.

    Shapes: best [parts, 4, R] -> float64 [2, R]: tokens, and their confidences.
    """
    if len(best) == 1:
        _, logit, token, total = best[0]
        return torch.stack((token, (logit - total).exp()))
    score, logit, token, _ = best.unbind(dim=1)  # [parts, R] each
    winner = score.argmax(dim=0, keepdim=True)
    confidences = (logit.gather(0, winner).squeeze(0) - total_of(best)).exp()
    return torch.stack((token.gather(0, winner).squeeze(0), confidences))


def total_of(best: Tensor) -> Tensor:
    """The logsumexp of each row's logits over all parts of the vocabulary. Shapes: best [parts, 4, R] -> [R]."""
    return best[:, 3].logsumexp(dim=0)


def _best_of_rows(
    logits: Tensor, noise: Noise | None, vocabulary: Vocabulary, floor: Tensor | None, *, after_temperature: bool
) -> Tensor:
    values = logits.to(torch.float32, copy=True)  # [R, V]
    is_cut = values < floor.unsqueeze(1) if floor is not None else None
    scale = None
    if noise is not None:
        scale = noise.temperature.unsqueeze(1)  # [R, 1], of the noise
        if after_temperature:
            is_sampled = scale > 0
            values /= torch.where(is_sampled, scale, 1.0).float()
            scale = is_sampled.double()
    mask = vocabulary.mask_token_id - vocabulary.first
    has_mask = 0 <= mask < values.shape[1]
    mask_logit = values[:, mask].clone() if has_mask else None
    if has_mask:
        values[:, mask] = -torch.inf
    best, column = values.max(dim=-1)
    score, logit = best, best
    if noise is not None and scale is not None:
        tokens = torch.arange(values.shape[1], dtype=torch.int64, device=values.device) + vocabulary.first
        scores = values + scale * gumbel(noise, tokens)
        if is_cut is not None:
            scores.masked_fill_(is_cut, -torch.inf)
        score, column = scores.max(dim=-1)
        logit = values.gather(1, column.unsqueeze(1)).squeeze(1)
    largest = best.masked_fill(best == -torch.inf, 0.0)  # a shard of the vocabulary may have no allowed token
    terms = values.sub_(largest.unsqueeze(1)).exp_()
    # The threads of a CPU share the sum of a single row, which rounds in another way.
    sums = terms.sum(dim=-1) if len(terms) > 1 else terms.expand(2, -1).sum(dim=-1)[:1]
    total = largest.double() + sums.double().log()
    if mask_logit is not None:
        total = torch.logaddexp(total, mask_logit.double())
    return torch.stack((score.double(), logit.double(), (column + vocabulary.first).double(), total))


def gumbel(noise: Noise, tokens: Tensor) -> Tensor:
    """Standard Gumbel numbers, float64 [R, V]: argmax(logits / T + these) draws from softmax(logits / T)."""
    return -torch.log(-torch.log(uniform(noise, tokens)))


def uniform(noise: Noise, tokens: Tensor) -> Tensor:
    """Numbers in (0, 1), one for each row and token. Shapes: tokens int64 [V] -> float64 [R, V]."""
    row = mix(mix(mix(noise.seed) + noise.step) + noise.position)  # [R]
    return unit_interval(mix(row.unsqueeze(1) + mix(tokens)))


def unit_interval(bits: Tensor) -> Tensor:
    """64 random bits as numbers in (0, 1), float64. Any shape -> the same."""
    kept = bits >> 12 & ((1 << 52) - 1)
    return (kept.double() + 0.5) * 2.0**-52  # one more bit, and the largest would round to 1


def mix(x: Tensor) -> Tensor:
    """Scramble 64 bits. Source: the finalizer of splitmix64; int64 arithmetic wraps as uint64 does."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift right, which does not extend the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
