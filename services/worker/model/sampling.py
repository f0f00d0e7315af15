"""From logits to one token and its confidence for each row, greedy or with a temperature.

Random numbers are counter-based: a hash of (seed, step, position, token). So a request draws the same ones
whatever it is batched with and wherever it runs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24  # logits turned to float64 at a time: 128 MiB


@dataclass(frozen=True, slots=True)
class Noise:
    """What the random numbers of each row hang on. Shapes: all [R]; temperature 0 means greedy."""

    temperature: Tensor  # float64
    seed: Tensor  # int64
    step: Tensor  # int64
    position: Tensor  # int64


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The part of the vocabulary that these logits are about, and which of its tokens is never taken."""

    first: int  # token id of the first column
    mask_token_id: int


def best_of(logits: Tensor, noise: Noise | None, vocabulary: Vocabulary, *, after_temperature: bool) -> Tensor:
    """The best token of each row, among those of `vocabulary`, in float64.

    Greedy: the most probable one. With a temperature T it is drawn from softmax(logits / T).
    Source: LLaDA's and Dream's published decoding, with two departures: Dream takes the softmax in the logits'
    dtype, here it is always float64; and the mask itself is never taken, or a step might unmask nothing.

    Shapes: logits [R, V] -> [4, R]: what it was chosen by, its logit, its id, the logsumexp of the row's logits.
    The last three give its probability: in the raw softmax (LLaDA), or with `after_temperature` in the one it was
    drawn from (Dream).
    """
    size = max(1, CHUNK_ELEMENTS // logits.shape[1])
    chunks = [slice(start, start + size) for start in range(0, len(logits), size)]
    parts = [
        _best_of_rows(logits[chunk], _rows(noise, chunk), vocabulary, after_temperature=after_temperature)
        for chunk in chunks
    ]
    return torch.cat(parts, dim=1)


def combine_shards(best: Tensor) -> tuple[Tensor, Tensor]:
    """Put the parts of the vocabulary together. Shapes: best [parts, 4, R] -> tokens int64, confidences float64 [R]."""
    score, logit, token, total = best.unbind(dim=1)  # [parts, R] each
    winner = score.argmax(dim=0, keepdim=True)
    confidences = (logit.gather(0, winner).squeeze(0) - total.logsumexp(dim=0)).exp()
    return token.gather(0, winner).squeeze(0).long(), confidences


def _rows(noise: Noise | None, chunk: slice) -> Noise | None:
    if noise is None:
        return None
    return Noise(noise.temperature[chunk], noise.seed[chunk], noise.step[chunk], noise.position[chunk])


def _best_of_rows(logits: Tensor, noise: Noise | None, vocabulary: Vocabulary, *, after_temperature: bool) -> Tensor:
    exact = logits.to(torch.float64, copy=True)  # [R, V]
    scale = None
    if noise is not None:
        scale = noise.temperature.unsqueeze(1)  # [R, 1], of the noise
        if after_temperature:
            warm = scale > 0
            exact /= torch.where(warm, scale, 1.0)
            scale = warm.double()
    mask = vocabulary.mask_token_id - vocabulary.first
    has_mask = 0 <= mask < exact.shape[1]
    of_mask = exact[:, mask].clone() if has_mask else None
    if has_mask:
        exact[:, mask] = -torch.inf
    best, column = exact.max(dim=-1)
    score, logit = best, best
    if noise is not None and scale is not None:
        tokens = torch.arange(exact.shape[1], dtype=torch.int64, device=exact.device) + vocabulary.first
        score, column = (exact + scale * gumbel(noise, tokens)).max(dim=-1)
        logit = exact.gather(1, column.unsqueeze(1)).squeeze(1)
    total = best + exact.sub_(best.unsqueeze(1)).exp_().sum(dim=-1).log()
    if of_mask is not None:
        total = torch.logaddexp(total, of_mask)
    return torch.stack((score, logit, (column + vocabulary.first).double(), total))


def gumbel(noise: Noise, tokens: Tensor) -> Tensor:
    """Standard Gumbel numbers, float64 [R, V]: argmax(logits / T + these) draws from softmax(logits / T)."""
    row = mix(mix(mix(noise.seed) + noise.step) + noise.position)  # [R]
    bits = mix(row.unsqueeze(1) + mix(tokens)) >> 12 & ((1 << 52) - 1)  # [R, V]
    uniform = (bits.double() + 0.5) * 2.0**-52  # inside (0, 1): with one bit more the largest would round to 1
    return -torch.log(-torch.log(uniform))


def mix(x: Tensor) -> Tensor:
    """Scramble 64 bits. Source: the finalizer of splitmix64; int64 arithmetic wraps as uint64 does."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift right: the sign is a bit like any other."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
