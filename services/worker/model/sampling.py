"""Samples a token and its confidence from each row of logits, greedily or with a temperature, also from a truncated
distribution (`top_p`, `top_k` and `min_p`), and finds the highest logits of a row, for clients that want them.

Random numbers are counter-based: a hash of (seed, step, position, token). So a request draws the same numbers in any
batch and on any instance.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from shared.arrays import Bool

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
    top_p = truncation.top_p[chunk].unsqueeze(1)
    is_kept = ((total - shares < top_p * total[:, -1:]) | (top_p >= 1)) & (shares > 0)
    last = is_kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1  # those kept come first
    return ordered.gather(1, last).squeeze(1)


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
